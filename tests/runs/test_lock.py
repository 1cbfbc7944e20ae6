"""The lock of a folder, alone; what two runs do to each other is in tests/faults."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.runs import lock
from lightkit.runs.folder import RunFolder
from lightkit.runs.lock import (
    LockState,
    boot_id,
    holder_of,
    lock_holder,
    locked,
    open_lock,
    read_lock,
    wait_for_lock,
)
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

HOLD = """
import sys
from pathlib import Path
from lightkit.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).begun():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs in the folder."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def locked_by_others(folder: Path) -> bool:
    """Whether a process that is forked now could not lock the folder."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            with (folder / ".lock").open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def the_lock(folder: Path) -> LockState:
    state = read_lock(folder)
    assert state is not None
    return state


def test_a_folder_is_made_and_locked_while_the_run_goes_on(tmp_path: Path) -> None:
    place = RunFolder(tmp_path / "a" / "b")
    with place.begun():
        assert (place.path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
        with pytest.raises(UserError, match="is running in this folder"), RunFolder(place.path).begun():
            pass  # a second run in the same process is refused, too
        assert lock_holder(place.path)
        assert locked_by_others(place.path), "asking does not take the lock nor end it"
    assert not locked_by_others(place.path)
    assert lock_holder(place.path) is None
    with pytest.raises(ZeroDivisionError), place.begun():
        raise ZeroDivisionError
    assert not locked_by_others(place.path), "it ends when the run fails"


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    read, write = os.pipe()
    with RunFolder(tmp_path).begun():
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)  # until the test is over
            os._exit(0)
    try:
        assert not locked_by_others(tmp_path)
    finally:
        os.close(read)
        os.close(write)
        os.waitpid(pid, 0)


def test_another_process_is_named_and_let_in_later(tmp_path: Path) -> None:
    with held(tmp_path) as process:
        message = rf"process {process.pid} on .* is running in this folder[\s\S]*wait for it or end it"
        with pytest.raises(UserError, match=message) as caught, RunFolder(tmp_path).begun():
            pass
        assert caught.value.exit_code == 75
        process.kill()
        process.wait()
        state = the_lock(tmp_path)
        assert (state.is_held, state.pid, state.is_released) == (False, None, False), "it has not given the lock up"
        with RunFolder(tmp_path).begun():
            assert f"process {os.getpid()}" in (tmp_path / ".lock").read_text()


@pytest.mark.parametrize("left", [b"", b"process 1 on elsewhere", b"\xff\xfe" * 100])
def test_a_stale_lock_file_is_taken_over(tmp_path: Path, left: bytes) -> None:
    (tmp_path / ".lock").write_bytes(left)
    with RunFolder(tmp_path).begun():
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a file system without locks."""

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_the_holder_says_who_it_is_and_how_it_gave_the_lock_up(tmp_path: Path) -> None:
    assert read_lock(tmp_path) is None
    with locked(tmp_path, detached=True):
        state = the_lock(tmp_path)
        assert (state.is_held, state.pid, state.host) == (True, os.getpid(), socket.gethostname())
        assert (state.boot, state.is_detached, state.is_released) == (boot_id(), True, False)
    state = the_lock(tmp_path)
    assert (state.is_held, state.pid, state.is_released) == (False, None, True)
    with locked(tmp_path):
        state = the_lock(tmp_path)
        assert (state.is_held, state.is_detached, state.is_released) == (True, False, False)


@pytest.mark.parametrize("left", ["", "process 1 on here", "process 1 on here\n{", "a\n[1]\n", "a\n{}\n", "\n\n"])
def test_the_lock_file_of_an_earlier_version_and_a_damaged_one_are_read(tmp_path: Path, left: str) -> None:
    (tmp_path / ".lock").write_text(left)
    state = the_lock(tmp_path)
    assert (state.is_held, state.pid, state.told, state.is_released is not True) == (
        False, None, left.split("\n")[0].strip(), True
    )  # fmt: skip


def rewritten(folder: Path, **facts: object) -> None:
    """Change what the file of a lock says."""
    path = folder / ".lock"
    first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, json.dumps(json.loads(second) | facts), *rest]) + "\n")


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="only Linux tells")
@pytest.mark.parametrize(
    "facts", [{"born": 1}, {"pid": 1, "born": None}, {"pid": "all"}, {"host": "elsewhere", "pid": 4711}]
)
def test_the_kernel_says_who_holds_a_lock_whatever_its_file_says(tmp_path: Path, facts: dict[str, object]) -> None:
    with locked(tmp_path):
        rewritten(tmp_path, **facts)
        state = the_lock(tmp_path)
        assert (state.is_held, state.pid, state.host) == (True, os.getpid(), socket.gethostname())
        assert state.told == f"process {os.getpid()} on {socket.gethostname()}"
    rewritten(tmp_path, **facts)
    assert not the_lock(tmp_path).is_held


def test_of_a_holder_on_another_machine_the_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "is_taken", lambda _: True)
    (tmp_path / ".lock").write_text('process 4711 on elsewhere\n{"pid": 4711, "host": "elsewhere"}\n')
    state = the_lock(tmp_path)
    assert (state.is_held, state.pid, state.host, state.told) == (True, 4711, "elsewhere", "process 4711 on elsewhere")


def test_what_is_no_file_is_no_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        for name, make in (
            ("link", lambda path: path.symlink_to(tmp_path / ".lock")),
            ("pipe", os.mkfifo),
            ("folder", Path.mkdir),
        ):
            (tmp_path / name).mkdir()
            make(tmp_path / name / ".lock")
            assert read_lock(tmp_path / name) is None, name


def test_where_there_are_no_locks_the_process_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    monkeypatch.setattr(lock, "_POLL_SECONDS", 0.01)
    with RunFolder(tmp_path).begun():
        assert not wait_for_lock(tmp_path, timeout=0.05)
        assert lock_holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
        rewritten(tmp_path, born=1)  # a reused number
        assert lock_holder(tmp_path) is None
    assert lock_holder(tmp_path) is None
    assert wait_for_lock(tmp_path, timeout=PATIENCE_SECONDS)
    with locked(tmp_path):
        rewritten(tmp_path, boot="another")
        assert lock_holder(tmp_path) is None
        rewritten(tmp_path, boot=boot_id(), born=None)  # a system that does not tell when a process was started
        assert lock_holder(tmp_path) is not None
        with subprocess.Popen(["true"]) as process:
            process.wait()
        rewritten(tmp_path, boot=boot_id(), born=None, pid=process.pid)
        assert lock_holder(tmp_path) is None


def test_looking_never_keeps_a_run_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookers hold the lock for a moment, together; one that is in the way all the time is told of in the end."""
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.5, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with locked(tmp_path):
            assert locked_by_others(tmp_path)
        fcntl.flock(file, fcntl.LOCK_SH)
        monkeypatch.setattr(lock, "_LOOKERS_SECONDS", 0.05)
        with pytest.raises(UserError, match="another process is running|is running in this folder"), locked(tmp_path):
            pass


def test_waiting_ends_with_the_process_however_that_ends(tmp_path: Path) -> None:
    assert wait_for_lock(tmp_path), "a folder without a lock is free"
    with held(tmp_path) as process:
        assert not wait_for_lock(tmp_path, timeout=0.05)
        free = threading.Event()
        threading.Thread(target=lambda: (wait_for_lock(tmp_path), free.set()), daemon=True).start()
        assert not free.wait(0.1)
        process.kill()
        until(free.is_set, "the lock to be free")
        assert wait_for_lock(tmp_path, timeout=PATIENCE_SECONDS)


def test_a_system_that_does_not_tell_when_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object, **_options: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(sys, "platform", "win32")
    boot_id.cache_clear()
    assert boot_id() is None
    monkeypatch.setattr(sys, "platform", "darwin")
    boot_id.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_o: subprocess.CompletedProcess([], 0, stdout="A-B\n"))
    assert boot_id() == "A-B"
    boot_id.cache_clear()


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="only Linux tells")
def test_a_file_system_that_numbers_files_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of the kernel does not name the file then: the process that is told must have it open and locked."""
    monkeypatch.setattr(lock, "_listed", lambda _: [])
    with locked(tmp_path), open_lock(tmp_path / ".lock") as file:
        assert holder_of(file, os.getpid(), is_locked=True) == os.getpid()
        with subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=file,
            stdout=subprocess.PIPE,
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert holder_of(file, other.pid, is_locked=True) is None  # it is open there, and no more
        assert holder_of(file, 1, is_locked=True) is None
        assert holder_of(file, None, is_locked=True) is None


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="only Linux tells")
def test_other_file_systems_and_systems_believe_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked(tmp_path), open_lock(tmp_path / ".lock") as file:
        assert holder_of(file, os.getpid(), is_locked=False) == os.getpid()
        assert holder_of(file, os.getppid(), is_locked=False) is None
        monkeypatch.setattr(lock, "PROC", tmp_path / "no-proc")
        assert holder_of(file, 4711, is_locked=True) == 4711
