"""The lock of a run folder; what two whole runs do to each other is in tests/faults."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.runs.folder import RunFolder
from lightkit.runs.lock import lock_holder, locked

# Python 3.12 warns of forks beside threads.
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


def test_reading_the_lock_file_does_not_end_the_lock(tmp_path: Path) -> None:
    with RunFolder(tmp_path).begun():
        (tmp_path / ".lock").read_bytes()
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
        assert caught.value.exit_code == 2
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
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with RunFolder(tmp_path).begun():
        pass


def test_who_runs_in_a_folder_can_be_asked(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
    with held(tmp_path) as process:
        assert str(lock_holder(tmp_path)).startswith(f"process {process.pid} on ")
        process.kill()
        process.wait()
    assert (tmp_path / ".lock").exists()
    assert lock_holder(tmp_path) is None


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
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / ".lock").touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert lock_holder(tmp_path) is None
