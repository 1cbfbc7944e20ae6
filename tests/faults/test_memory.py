"""Memory that runs out, and loader processes that die."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, alive, assert_same_end, at, children, log, newest, result
from tests.waiting import until

Run = Callable[..., Process]
WORKERS = ("data.num_workers=2",)


def assert_ended(process: Process, folder: Path, code: int, *texts: str) -> None:
    assert process.code == code, process.out + process.err
    assert "Traceback" not in process.err
    for text in texts:
        assert text in process.err
    assert result(folder)["status"] == "failed"
    assert texts[0].removeprefix("error: ") in log(folder)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("memory", "error: out of memory after step 9: MemoryError"),
        ("allocate", "tried to allocate 1125899906842624 bytes"),
        ("cuda", "error: out of memory after step 9: CUDA out of memory. Tried to allocate 20.00 GiB."),
    ],
)
def test_out_of_memory_says_what_to_change_and_resume_goes_on(
    ran: Run, project: Path, whole: Path, what: str, reason: str
) -> None:
    process = ran(*TRAIN, at(9, what))
    assert_ended(process, project / "run", 4, reason, "data.batch_size=5 trainer.accumulate=2")
    assert newest(project / "run")["state"]["step"] == 7
    (project / "fine").touch()
    assert ran("resume", "run").code == 0
    assert_same_end(whole, project / "run")


@pytest.mark.parametrize("what", ["memory", "allocate"])
def test_out_of_memory_while_the_run_is_built_leaves_nothing(ran: Run, project: Path, what: str) -> None:
    process = ran(*TRAIN, f"data.dataset.what={what}", "data.dataset.here=true")
    assert process.code == 4
    assert process.err.startswith("error: out of memory while the run was built: ")
    assert not (project / "run").exists()


@pytest.mark.slow
def test_out_of_memory_in_evaluation(ran: Run, project: Path) -> None:
    assert ran(*TRAIN, "model.what=allocate", "model.number=9").code == 0
    for command in ("eval", "predict"):
        process = ran(command, "run", "--split", "train")
        assert process.code == 0
    process = ran(*TRAIN, "hydra.run.dir=other", "model.what=allocate", "model.number=1")
    assert process.code == 4


@pytest.mark.parametrize(
    ("what", "code", "reason"),
    [
        ("exit:7", 1, "error: data.num_workers: a loader process died: DataLoader worker (pid"),
        (":KILL", 1, "error: data.num_workers: a loader process died: DataLoader worker (pid"),
        (":SEGV", 1, "error: data.num_workers: a loader process died: "),
        ("memory", 4, "(reading a batch, 10 samples): MemoryError (in a loader process)"),
        ("allocate", 4, "(in a loader process)"),
    ],
)
def test_a_loader_process_that_fails_ends_the_run(ran: Run, project: Path, what: str, code: int, reason: str) -> None:
    process = ran(*TRAIN, *WORKERS, f"data.dataset.what={what}")
    fix = "data.num_workers=0 shows errors" if code == 1 else "data.batch_size=5 trainer.accumulate=2"
    assert_ended(process, project / "run", code, reason, fix)


def test_a_loader_process_killed_from_outside_and_going_on(lightkit: Run, ran: Run, project: Path, whole: Path) -> None:
    process = lightkit(*TRAIN, *WORKERS, "data.dataset.what=hold", "data.dataset.row=40")
    process.hold()
    workers = children(process.pid)
    for worker in workers:
        ended(worker)
    process.wait()
    assert_ended(
        process, project / "run", 1, "a loader process died: DataLoader worker (pid", "memory may have run out"
    )
    until(lambda: not any(map(alive, workers)), "the workers to end")
    (project / "fine").touch()
    assert ran(*TRAIN, "hydra.run.dir=again", *WORKERS).code == 0
    assert_same_end(whole, project / "again")


def ended(pid: int) -> None:
    import os
    import signal

    os.kill(pid, signal.SIGKILL)
