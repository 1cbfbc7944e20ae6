"""Two processes that want one run folder."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, assert_same_end, at, newest

Run = Callable[..., Process]


@pytest.mark.thorough
def test_a_second_process_is_refused_and_told_who_is_there(lightkit: Run, ran: Run, project: Path, whole: Path) -> None:
    first = lightkit(*TRAIN, at(9, "hold"))
    first.hold_after(7)
    files = {path: path.stat().st_mtime_ns for path in (project / "run").rglob("*")}
    for command in (("resume", "run"), (*TRAIN, "resume=auto")):
        second = ran(*command)
        assert second.code == 75
        assert f"process {first.pid} on " in second.err
        assert "is running in this folder" in second.err
        assert "Traceback" not in second.err
    third = ran(*TRAIN)
    assert third.code == 2
    assert "the folder already holds a run" in third.err
    assert files == {path: path.stat().st_mtime_ns for path in (project / "run").rglob("*")}
    first.go()
    assert first.wait() == 0
    assert_same_end(whole, project / "run")


def test_two_new_runs_in_one_folder(lightkit: Run, ran: Run, project: Path) -> None:
    first = lightkit(*TRAIN, at(1, "hold"))
    first.hold()
    (project / "run" / "config.yaml").rename(project / "run" / "hidden.yaml")  # as if it was not written yet
    second = ran(*TRAIN)
    assert second.code == 75
    assert f"process {first.pid} on " in second.err
    first.go()
    assert first.wait() == 0


def test_a_lock_ends_with_its_process(lightkit: Run, ran: Run, project: Path, whole: Path) -> None:
    first = lightkit(*TRAIN, at(9, "hold"))
    first.hold_after(7)
    first.signal(signal.SIGKILL)
    first.wait()
    assert f"process {first.pid}" in (project / "run" / ".lock").read_text(), "the file stays, the lock does not"
    (project / "fine").touch()
    assert ran("resume", "run").code == 0
    assert_same_end(whole, project / "run")


def test_readers_need_no_lock(lightkit: Run, ran: Run, project: Path) -> None:
    first = lightkit(*TRAIN, at(9, "hold"))
    first.hold_after(7)
    assert ran("eval", "run").code == 0
    assert ran("runs").code == 0
    first.go()
    assert first.wait() == 0


@pytest.mark.thorough
def test_a_killed_first_save_starts_anew(ran: Run, project: Path, whole: Path) -> None:
    assert ran(*TRAIN, at(3, ":KILL")).code == -signal.SIGKILL
    (project / "run" / "checkpoints" / "checkpoint.unfinished").write_bytes(b"PK half")
    (project / "fine").touch()
    process = ran("resume", "run")
    assert process.code == 2
    assert "there is no checkpoint to go on from" in process.err
    assert ran(*TRAIN, "resume=auto").code == 0
    assert_same_end(whole, project / "run")
    assert newest(project / "run")["state"]["step"] == 21
