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
from lightkit.runs.lock import boot_id, lock_holder, locked, read_lock, wait_for_lock
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


def test_a_folder_is_made_and_locked_while_the_run_goes_on(tmp_path: Path) -> None:
    place = RunFolder(tmp_path / "a" / "b")
    with place.begun():
        assert (tmp_path / "a" / "b" / ".lock").read_text().startswith(f"process {os.getpid()} on ")
        assert locked_by_others(place.path)
    assert not locked_by_others(place.path)


def test_a_second_run_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with RunFolder(tmp_path).begun():
        with pytest.raises(UserError, match="is running in this folder"), RunFolder(tmp_path).begun():
            pass
        assert locked_by_others(tmp_path)


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


def test_the_lock_ends_when_the_run_fails(tmp_path: Path) -> None:
    place = RunFolder(tmp_path)
    with pytest.raises(ZeroDivisionError), place.begun():
        raise ZeroDivisionError
    assert not locked_by_others(tmp_path)


def test_another_process_is_named_and_let_in_later(tmp_path: Path) -> None:
    with held(tmp_path) as process:
        message = rf"process {process.pid} on .* is running in this folder[\s\S]*wait for it or end it"
        with pytest.raises(UserError, match=message) as caught, RunFolder(tmp_path).begun():
            pass
        assert caught.value.exit_code == 75
        process.kill()
        process.wait()
        with RunFolder(tmp_path).begun():
            assert f"process {os.getpid()}" in (tmp_path / ".lock").read_text()


@pytest.mark.parametrize("left", [b"", b"process 1 on elsewhere", b"\xff\xfe" * 100])
def test_a_stale_lock_file_is_taken_over(tmp_path: Path, left: bytes) -> None:
    (tmp_path / ".lock").write_bytes(left)
    with RunFolder(tmp_path).begun():
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_file_system_without_locks_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    with RunFolder(tmp_path).begun():
        pass


def test_asking_does_not_take_the_lock_nor_end_it(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert lock_holder(tmp_path)
        assert locked_by_others(tmp_path)
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        pass


def test_a_run_that_starts_while_somebody_asks_waits_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, asked = fcntl.flock, [BlockingIOError(errno.EAGAIN, "asking")] * 2

    def busy(*arguments: object) -> None:
        if asked:
            raise asked.pop()
        flock(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", busy)
    with locked(tmp_path):
        assert locked_by_others(tmp_path)


def test_nobody_knows_of_a_folder_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").touch()
    without_locks(monkeypatch)
    assert lock_holder(tmp_path) is None


def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a file system without locks."""

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_the_holder_says_who_it_is_and_how_it_gave_the_lock_up(tmp_path: Path) -> None:
    assert read_lock(tmp_path) is None
    with locked(tmp_path, detached=True):
        state = read_lock(tmp_path)
        assert state is not None
        assert (state.is_held, state.pid, state.host) == (True, os.getpid(), socket.gethostname())
        assert (state.boot, state.is_detached, state.is_released) == (boot_id(), True, False)
    state = read_lock(tmp_path)
    assert state is not None
    assert (state.is_held, state.pid, state.is_released) == (False, None, True)
    with locked(tmp_path):
        state = read_lock(tmp_path)
        assert state is not None
        assert (state.is_held, state.is_detached, state.is_released) == (True, False, False)


def test_a_killed_holder_has_not_given_the_lock_up(tmp_path: Path) -> None:
    with held(tmp_path) as process:
        process.kill()
        process.wait()
    state = read_lock(tmp_path)
    assert state is not None
    assert (state.is_held, state.pid, state.is_released) == (False, None, False)


def test_a_lock_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("process 1 on elsewhere")
    state = read_lock(tmp_path)
    assert state is not None
    assert (state.is_held, state.told, state.is_released) == (False, "process 1 on elsewhere", None)


@pytest.mark.parametrize("left", ["", "process 1 on here\n", "process 1 on here\n{", "a\n[1]\n", "a\n{}\n", "\n\n"])
def test_a_damaged_lock_file_is_read(tmp_path: Path, left: str) -> None:
    (tmp_path / ".lock").write_text(left)
    state = read_lock(tmp_path)
    assert state is not None
    assert not state.is_held
    assert state.pid is None


def rewritten(folder: Path, **facts: object) -> None:
    """Change what the file of a lock says."""
    path = folder / ".lock"
    first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, json.dumps(json.loads(second) | facts), *rest]) + "\n")


@pytest.mark.skipif(not Path("/proc/locks").is_file(), reason="only Linux tells")
@pytest.mark.parametrize(
    "facts", [{"born": 1}, {"pid": 1, "born": None}, {"pid": -1}, {"pid": "all"}, {"host": "elsewhere", "pid": 4711}]
)
def test_the_kernel_says_who_holds_a_lock_whatever_its_file_says(tmp_path: Path, facts: dict[str, object]) -> None:
    with locked(tmp_path):
        rewritten(tmp_path, **facts)
        state = read_lock(tmp_path)
        assert state is not None
        assert (state.is_held, state.pid, state.host) == (True, os.getpid(), socket.gethostname())
        assert state.told == f"process {os.getpid()} on {socket.gethostname()}"
    rewritten(tmp_path, **facts)
    state = read_lock(tmp_path)
    assert state is not None
    assert not state.is_held


def test_of_a_holder_on_another_machine_the_file_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "is_taken", lambda _: True)
    (tmp_path / ".lock").write_text('process 4711 on elsewhere\n{"pid": 4711, "host": "elsewhere"}\n')
    state = read_lock(tmp_path)
    assert state is not None
    assert (state.is_held, state.pid, state.host, state.told) == (True, 4711, "elsewhere", "process 4711 on elsewhere")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_no_lock(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a" / ".lock"
    path.parent.mkdir()
    with locked(tmp_path):
        {"link": lambda: path.symlink_to(tmp_path / ".lock"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[
            kind
        ]()
        assert read_lock(path.parent) is None


def test_where_there_are_no_locks_the_process_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    with locked(tmp_path):
        assert lock_holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
        rewritten(tmp_path, born=1)  # a reused number
        assert lock_holder(tmp_path) is None
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        rewritten(tmp_path, boot="another")
        assert lock_holder(tmp_path) is None
        rewritten(tmp_path, boot=boot_id(), born=None)  # a system that does not tell when a process was started
        assert lock_holder(tmp_path) is not None
        with subprocess.Popen(["true"]) as process:
            process.wait()
        rewritten(tmp_path, boot=boot_id(), born=None, pid=process.pid)
        assert lock_holder(tmp_path) is None


def test_looking_never_keeps_a_run_from_starting(tmp_path: Path) -> None:
    """Lookers hold the lock for a moment, together; one that is in the way all the time is waited for."""
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.5, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with locked(tmp_path):
            assert locked_by_others(tmp_path)


def test_somebody_who_looks_for_ever_is_told_of_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_LOOKERS_SECONDS", 0.05)
    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(UserError, match="another process is running in this folder"), locked(tmp_path):
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


def test_waiting_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    monkeypatch.setattr(lock, "_POLL_SECONDS", 0.01)
    with locked(tmp_path):
        assert not wait_for_lock(tmp_path, timeout=0.05)
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
