"""What is said of worker processes that are waited for."""

from __future__ import annotations

import logging
import multiprocessing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lightkit.data import waiting
from lightkit.data.prepare import LoaderOptions
from lightkit.data.waiting import IDLE, JOINING, ReadJob, WorkerWatch

OPTIONS = LoaderOptions(10, shuffle=True, num_workers=2, split="train")
JOBS = [ReadJob(4, first, list(range(first, first + 10))) for first in (10, 20, 30)]
WORKERS = [SimpleNamespace(pid=70, exitcode=None), SimpleNamespace(pid=71, exitcode=None)]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> WorkerWatch:
    """Worker 1 has been at row 23 since second 40; it is second 100."""
    made = watching(OPTIONS, monkeypatch, begin=40.0)
    monkeypatch.setattr(waiting, "monotonic", lambda: 100.0)
    return made


def watching(options: LoaderOptions, monkeypatch: pytest.MonkeyPatch, *, begin: float, row: int = 23) -> WorkerWatch:
    made = WorkerWatch(options)
    made.begin(JOBS)
    made.came()
    monkeypatch.setattr(waiting, "monotonic", lambda: begin)
    monkeypatch.setattr(waiting, "get_worker_info", lambda: SimpleNamespace(id=1))
    made.board.note(row, 20)
    return made


def test_lines_come_ever_more_seldom(watch: WorkerWatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for seconds in range(1000):
            watch.look(seconds, WORKERS)
    assert [record.getMessage().partition(" s (")[0] for record in caplog.records] == [
        f"no batch for {seconds}" for seconds in (60, 120, 240, 480, 960)
    ]
    place = "(train, epoch 5, batch 3 of 4)"
    told = "worker 1 (pid 71) has been reading row 23 of the data set for 60 s"
    assert caplog.records[0].getMessage() == f"no batch for 60 s {place}: {told}"


@pytest.mark.parametrize(
    ("row", "text"),
    [(JOINING, "has been joining and preparing a batch for 60 s"), (IDLE, "all 2 workers wait for work")],
)
def test_what_else_a_worker_may_be_at(row: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watching(replace(OPTIONS, timeout_seconds=9.0), monkeypatch, begin=40.0, row=row)
    monkeypatch.setattr(waiting, "monotonic", lambda: 100.0)
    assert text in str(watch.late_error(WORKERS))


def test_the_time_is_up_only_where_there_is_a_limit(watch: WorkerWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (None, 0.0):
        watching(replace(OPTIONS, timeout_seconds=limit), monkeypatch, begin=0.0).look(59, WORKERS)
    limited = watching(replace(OPTIONS, timeout_seconds=30.0), monkeypatch, begin=0.0)
    limited.look(29, WORKERS)
    with pytest.raises(TimeoutError):
        limited.look(30, WORKERS)


def test_those_that_hang_are_not_asked_to_end(watch: WorkerWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch.hanging(2) == [1]
    assert watching(OPTIONS, monkeypatch, begin=98.0).hanging(2) == []


@pytest.mark.parametrize(
    ("status", "end", "fix"),
    [
        (-9, "was killed by SIGKILL", "most likely memory ran out"),
        (-7, "was killed by SIGBUS", "most likely shared memory ran out"),
        (-11, "was killed by SIGSEGV", "data.num_workers=0 reads in the main process"),
        (3, "ended with exit status 3", "data.num_workers=0 reads in the main process"),
    ],
)
def test_how_a_worker_ended(watch: WorkerWatch, status: int, end: str, fix: str) -> None:
    error = watch.ended_error([WORKERS[0], SimpleNamespace(pid=71, exitcode=status)])
    assert error.exit_code == 1
    assert f"worker 1 (pid 71) {end} while it was reading row 23 of the data set" in str(error)
    assert "at:       train, epoch 5, batch 3 of 4" in str(error)
    assert f"fix:      {fix}" in str(error)


def test_an_evaluation_has_no_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watching(replace(OPTIONS, shuffle=False, split="val"), monkeypatch, begin=0.0)
    assert "at:       val, batch 3 of 4" in str(watch.ended_error([]))


class Ending:
    """Stands for a process that is about to end."""

    def __init__(self, status: int | None) -> None:
        self.reading, self._writing = multiprocessing.Pipe(duplex=False)
        self.sentinel, self.exitcode, self._status = self.reading.fileno(), None, status
        if status is not None:
            self._writing.close()

    def join(self) -> None:
        self.exitcode = self._status  # type: ignore[assignment]


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
        worker._writing.close()
