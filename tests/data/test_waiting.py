"""What is said of worker processes that are waited for."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.data import waiting
from lightkit.data.prepare import LoaderOptions
from lightkit.data.waiting import IDLE, JOINING, ReadJob, WorkerWatch

OPTIONS = LoaderOptions(10, shuffle=True, num_workers=2, split="train")
JOBS = [ReadJob(4, first, list(range(first, first + 10))) for first in (10, 20, 30)]
WORKERS = [SimpleNamespace(pid=70, exitcode=None), SimpleNamespace(pid=71, exitcode=None)]
Watching = Callable[..., WorkerWatch]


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Watching:
    """Makes the watch of loader processes of which worker 1 is at a row since a second; it is second 100."""

    def made(*, begin: float = 40.0, row: int = 23, **changes: Any) -> WorkerWatch:
        watch = WorkerWatch(replace(OPTIONS, **changes))
        watch.begin(4, range(10, 40, 10))
        watch.came()
        monkeypatch.setattr(waiting, "monotonic", lambda: begin)
        monkeypatch.setattr(waiting, "get_worker_info", lambda: SimpleNamespace(id=1))
        watch.board.note(row, 20)
        monkeypatch.setattr(waiting, "monotonic", lambda: 100.0)
        return watch

    return made


def test_lines_come_ever_more_seldom(watching: Watching, caplog: pytest.LogCaptureFixture) -> None:
    watch = watching()
    with caplog.at_level(logging.WARNING):
        for seconds in range(1000):
            watch.look(seconds, WORKERS)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" s (")[0] for line in lines] == [f"no batch for {s}" for s in (60, 120, 240, 480, 960)]
    busy = "worker 1 (pid 71) has been reading row 23 of the data set for 60 s"
    assert lines[0] == f"no batch for 60 s (train, epoch 5, batch 3 of 4): {busy}"


def test_what_else_a_worker_may_be_at(watching: Watching) -> None:
    late = str(watching(row=JOINING, timeout_seconds=9.0).late_error(WORKERS))
    assert "has been joining and preparing a batch for 60 s" in late
    assert "all 2 workers wait for work" in str(watching(row=IDLE, timeout_seconds=9.0).late_error(WORKERS))
    assert "at:       val, batch 3 of 4" in str(watching(shuffle=False, split="val").ended_error([]))


def test_the_time_is_up_only_where_there_is_a_limit(watching: Watching) -> None:
    for limit in (None, 0.0):
        watching(timeout_seconds=limit).look(59, WORKERS)
    limited = watching(timeout_seconds=30.0)
    limited.look(29, WORKERS)
    with pytest.raises(TimeoutError):
        limited.look(30, WORKERS)


def test_those_that_hang_are_not_asked_to_end(watching: Watching) -> None:
    assert watching().hanging(2) == [1]
    assert watching(begin=98.0).hanging(2) == []


@pytest.mark.parametrize(
    ("status", "end", "fix"),
    [
        (-9, "was killed by SIGKILL", "most likely memory ran out"),
        (-7, "was killed by SIGBUS", "most likely shared memory ran out"),
        (-11, "was killed by SIGSEGV", "data.num_workers=0 reads in the main process"),
        (3, "ended with exit status 3", "data.num_workers=0 reads in the main process"),
    ],
)
def test_how_a_worker_ended(watching: Watching, status: int, end: str, fix: str) -> None:
    error = watching().ended_error([WORKERS[0], SimpleNamespace(pid=71, exitcode=status)])
    assert error.exit_code == 1
    assert f"worker 1 (pid 71) {end} while it was reading row 23 of the data set" in str(error)
    assert "at:       train, epoch 5, batch 3 of 4" in str(error)
    assert f"fix:      {fix}" in str(error)


class Ending:
    """Stands for a process that is about to end."""

    def __init__(self, status: int | None) -> None:
        self.reading, self.writing = multiprocessing.Pipe(duplex=False)
        self.sentinel, self.exitcode, self.status = self.reading.fileno(), None, status
        if status is not None:
            self.writing.close()

    def join(self) -> None:
        self.exitcode = self.status  # type: ignore[assignment]


@pytest.mark.parametrize(("statuses", "expected"), [([None, -9], True), ([None, None], False), ([], False)])
def test_a_process_that_is_about_to_end_is_waited_for(
    statuses: list[int | None], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_PATIENCE_SECONDS", 0.01)
    workers = [Ending(status) for status in statuses]
    assert waiting.some_end(workers) == expected
    assert [worker.exitcode for worker in workers] == statuses
    for worker in workers:
        worker.reading.close()
        worker.writing.close()
