"""Loader processes that die or hang: the message says which, where and what helps, and nothing else is blamed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, alive, assert_ended, assert_same_end, children, row_at
from tests.waiting import until

Run = Callable[..., Process]
WORKERS = ("data.num_workers=2", "data.prefetch_factor=1")
HELD = ("data.dataset.what=hold", "data.dataset.patience=0.01")
PLACES = {
    "train": (row_at(25), "train, epoch 1, batch 3 of 7"),
    "val": (65, "val, batch 1 of 1"),
    "test": (80, "test, batch 1 of 2"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "end", "fix"),
    [
        (":KILL", "was killed by SIGKILL", "most likely memory ran out"),
        ("exit:7", "ended with exit status 7", "data.num_workers=0 reads in the main process"),
    ],
)
def test_a_worker_that_dies_is_told_with_its_end(ran: Run, project: Path, what: str, end: str, fix: str) -> None:
    row, place = PLACES["train"]
    process = ran(*TRAIN, *WORKERS, f"data.dataset.what={what}", f"data.dataset.row={row}")
    why = f") {end} while it was reading row {row} of the data set"
    assert_ended(process, project / "run", 1, "error: data.num_workers: worker ", why, place, fix, "lightkit resume")


@pytest.mark.thorough
def test_a_worker_that_dies_in_an_evaluation_is_told_with_its_place(ran: Run, project: Path) -> None:
    row, place = PLACES["val"]
    process = ran(*TRAIN, *WORKERS, "data.dataset.what=:KILL", f"data.dataset.row={row}")
    assert_ended(process, project / "run", 1, "was killed by SIGKILL while it was reading row", f"at:       {place}")


def test_a_worker_that_dies_is_not_blamed_on_the_metric_that_is_being_built(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, *WORKERS, "++metrics.train.killed._target_=faulty.killing")
    assert_ended(process, project / "run", 1, "error: data.num_workers: worker 0 (pid ", "was killed by SIGKILL")
    assert "could not be built" not in process.err


def test_a_worker_that_dies_while_the_scaling_is_fitted_leaves_nothing(ran: Run, project: Path) -> None:
    process = ran(*TRAIN, *WORKERS, "data.normalize=standard", "data.dataset.what=:KILL", "data.dataset.row=40")
    assert process.code == 1
    assert "was killed by SIGKILL while it was reading row 40 of the data set" in process.err
    assert "at:       train, read for data.normalize, batch 1 of 1" in process.err
    assert not (project / "run").exists()


@pytest.mark.thorough
def test_workers_that_die_or_hang_end_an_evaluation(ran: Run, project: Path) -> None:
    assert ran(*TRAIN).code == 0
    row, place = PLACES["test"]
    process = ran("eval", "run", *WORKERS, "data.dataset.what=:KILL", f"data.dataset.row={row}")
    assert process.code == 1
    assert "was killed by SIGKILL while it was reading row 80 of the data set" in process.err
    limit = "data.timeout_seconds=0.1"
    process = ran("eval", "run", *WORKERS, *HELD, f"data.dataset.row={row}", limit)
    assert process.code == 1
    assert "error: data.timeout_seconds: no batch came within 0.1 s: worker " in process.err
    assert f"at:       {place}" in process.err


@pytest.mark.thorough
def test_workers_killed_from_outside_and_going_on(lightkit: Run, ran: Run, project: Path, whole: Path) -> None:
    process = lightkit(*TRAIN, *WORKERS, "data.dataset.what=hold", "data.dataset.row=40")
    process.hold()
    workers = children(process.pid)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    process.wait()
    assert_ended(process, project / "run", 1, "was killed by SIGKILL while it was")
    until(lambda: not any(map(alive, workers)), "the workers to end")
    (project / "fine").touch()
    assert ran(*TRAIN, "hydra.run.dir=again", *WORKERS).code == 0
    assert_same_end(whole, project / "again")


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["test", "train"])
def test_a_worker_that_hangs_ends_the_run_when_its_time_is_up(ran: Run, project: Path, whole: Path, split: str) -> None:
    row, place = PLACES[split]
    process = ran(*TRAIN, *WORKERS, "data.timeout_seconds=0.1", "data.dataset.what=hold", f"data.dataset.row={row}")
    why = f") has been reading row {row} of the data set for "
    assert_ended(process, project / "run", 1, "no batch came within 0.1 s: worker ", why, place, "lightkit resume")
    if split == "test":  # before that nothing was saved
        (project / "fine").touch()
        assert ran("resume", "run", "data.timeout_seconds=null").code == 0
        assert_same_end(whole, project / "run")


@pytest.mark.thorough
def test_a_worker_that_hangs_is_told_while_it_is_waited_for(lightkit: Run, project: Path, whole: Path) -> None:
    row, place = PLACES["train"]
    process = lightkit(*TRAIN, *WORKERS, *HELD, f"data.dataset.row={row}")
    line = f"s ({place}): worker "
    until(lambda: line in process.err, "a line about the wait")
    until(lambda: f") has been reading row {row} of the data set for " in process.err, "the rest of it")
    until(lambda: line in (project / "run" / "run.log").read_text(), "the same line in the log")
    process.go()
    assert process.wait() == 0
    assert_same_end(whole, project / "run")
