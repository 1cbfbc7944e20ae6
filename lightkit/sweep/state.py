"""What became of a job, derived at each look from its folder: nothing that is written down says that it runs.

A job that runs is followed by the file that it writes its values to, wherever it runs.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.ranking import improves
from lightkit.common.reading import is_whole, read_tail, yaml_or_nothing
from lightkit.processes.files import Lines
from lightkit.runs.lock import lock_holder
from lightkit.runs.on_end import STOPPED
from lightkit.runs.reading import read_result, row_of
from lightkit.sweep.job import Job, JobOutcome, Start, section_of
from lightkit.sweep.journal import Record
from lightkit.sweep.queue import QUEUED, in_queue

ENDED = ("finished", "paused", "pruned", "stopped", "failed")
"""Statuses of jobs that are done with for now."""


@dataclass(frozen=True)
class JobState:
    """A job at one moment.

    Attributes:
        job: The job.
        status: `waiting`, `queued`, `starting`, `running`, or that of its outcome; one that died unseen is
            `interrupted`.
        metric: Name of the monitored value.
        best: Its best value so far.
        epoch: Epoch under way, or epochs done.
        step: Optimizer steps done.
        share: Share of its training that is done.
        eta_seconds: Seconds to its end.
        code: Exit status of its last process; None where nobody saw it end.
        reason: Why it failed, in a line.
        place: Where it runs.
        replicates: Number of replicates whose mean `best` is; 0 where it is that of one job.
        half: Half of the 95 % interval of that mean.
    """

    job: Job
    status: str
    metric: str = ""
    best: float | None = None
    epoch: int | None = None
    step: int | None = None
    share: float | None = None
    eta_seconds: float | None = None
    code: int | None = None
    reason: str = ""
    place: str = ""
    replicates: int = 0
    half: float | None = None


def is_locked(folder: Path) -> bool:
    """Tell whether a process works in the folder of a job."""
    return any(lock_holder(folder, name) for name in (run_files.JOB_LOCK, run_files.LOCK))


def look(job: Job, record: Record, *, controlled: bool | None = None) -> JobState:
    """Find out about a job; one that seems to have ended unseen may be in the queue of a cluster.

    Args:
        job: The job.
        record: The journal of its sweep.
        controlled: Whether a process runs the sweep; None finds that out.
    """
    state = _look(job, record, controlled=controlled)
    is_open = job.name in record.started and job.name not in record.ended
    found = in_queue(record, job.name) if is_open and state.status in ("starting", "interrupted") else None
    return state if found is None else begun(job, found.place)


def begun(job: Job, place: str = "") -> JobState:
    """Return the state of a job that was started and has not locked its folder yet."""
    return JobState(job, "queued" if place == QUEUED else "starting", place="" if place == QUEUED else place)


def _look(job: Job, record: Record, *, controlled: bool | None) -> JobState:
    locked, result = is_locked(job.folder), read_result(job.folder)  # in this order: a result is written before the end
    if locked:
        place = lock_holder(job.folder, run_files.JOB_LOCK) or lock_holder(job.folder) or ""
        progress = JobProgress(job)
        progress.look()
        return running(job, progress, place)
    ended = record.ended.get(job.name)
    if ended is None and job.name in record.started and _is_new(job, record.started[job.name]):
        alive = lock_holder(record.folder) is not None if controlled is None else controlled
        return JobState(job, "starting" if alive else "interrupted")
    if not result and ended is None:
        return JobState(job, "interrupted" if job.name in record.started else "waiting")
    outcome = read_outcome(job, ended.code if ended else None, result)
    if ended is not None and outcome.status != "finished":
        outcome = ended if not result or ended.status in ("pruned", "stopped") else outcome
    return of_outcome(job, outcome, result)


def running(job: Job, progress: JobProgress, place: str = "") -> JobState:
    """Return the state of a job that runs, by what was read of its log."""
    known = progress.metric, progress.best, progress.epoch, progress.step, progress.share, progress.eta_seconds()
    return JobState(job, "running", *known, place=place)


def of_outcome(job: Job, outcome: JobOutcome, result: Mapping[str, Any] | None = None) -> JobState:
    """Return the state of a job that has ended."""
    objective = (read_result(job.folder) if result is None else result).get("objective") or {}
    known = objective.get("name") or "", objective.get("value"), outcome.epoch, outcome.step
    share = 1.0 if outcome.status == "finished" else None
    return JobState(job, outcome.status, *known, share=share, code=outcome.code, reason=outcome.reason)


def read_outcome(job: Job, code: int | None, result: Mapping[str, Any]) -> JobOutcome:
    """Read how a job ended from its result, and from the exit status of its process.

    Args:
        job: The job, which does not run.
        code: The exit status; None where nobody saw it.
        result: The content of its `result.json`; empty where there is none of its last part.
    """
    status = result.get("status")
    best = (result.get("objective") or {}).get("value")
    values = {**(result.get("metrics") or {}), "objective": best}
    values = {name: value for name, value in values.items() if value is not None}
    facts: dict[str, Any] = {"values": values, "epoch": result.get("epochs") or 0, "step": result.get("steps") or 0}
    if status in ("finished", "paused", "pruned"):
        return JobOutcome(job.name, status, **facts, code=0 if code is None else code)
    if (status == "interrupted" and code is None) or code in STOPPED:
        return JobOutcome(job.name, "interrupted", **facts, code=code)
    reason = (result.get("reason") or "").strip() if status == "failed" else ""
    return JobOutcome(job.name, "failed", **facts, code=code, reason=(reason or _guess(job, code)).splitlines()[0])


def reached(outcome: JobOutcome, start: Start) -> bool:
    """Tell whether a job has ended where a start would lead it, so that there is nothing to train."""
    if outcome.status == "finished":
        return True
    if outcome.status != "paused" or start.stop_at is None:
        return False
    number, _, unit = start.stop_at.partition(" ")
    with suppress(ValueError):
        return (outcome.step if unit.startswith("step") else outcome.epoch) >= int(number)
    return False


def _guess(job: Job, code: int | None) -> str:
    """Say why a job has died that left no reason: by its exit status, and by the last that it printed."""
    if code is not None and code > 128:
        return in_words(code)
    text = read_tail(job.folder / run_files.OUTPUT_LOG, 4096)
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    ended = "ended without a result" if code in (None, 0) else f"exit status {code}"
    return f"{ended}: {last}" if last else ended


def in_words(code: int) -> str:
    """Say which signal an exit status above 128 stands for."""
    with suppress(ValueError):
        return f"killed by signal {code - 128} ({signal.Signals(code - 128).name})"
    return f"killed by signal {code - 128}"


def _is_new(job: Job, started: float) -> bool:
    """Tell whether a job that was started has not come so far as to lock its folder."""
    try:
        return (job.folder / run_files.JOB_LOCK).stat().st_mtime < started
    except OSError:
        return True


@dataclass
class JobProgress:
    """How far a job is, as its rows tell.

    Args:
        job: The job.
    """

    job: Job
    metric: str = ""
    """Name of the monitored value."""
    mode: str = "max"
    """Whether `min` or `max` of it is better."""
    best: float | None = None
    """Its best value so far."""
    epoch: int | None = None
    step: int | None = None
    share: float | None = None
    """Share of its training that is done; None where that is not known."""
    _epochs: int | None = None
    _steps: int | None = None
    _first: tuple[float, float] | None = None
    _last_time: float = 0.0
    _seen: set[tuple[int, tuple[str, ...]]] = field(default_factory=set)
    _lines: Lines = field(init=False)

    def __post_init__(self) -> None:
        self._lines = Lines(self.job.folder / run_files.METRICS)
        content = yaml_or_nothing(self.job.config)
        metrics, trainer = section_of(content, "metrics"), section_of(content, "trainer")
        self.metric, self.mode = str(metrics.get("monitor") or ""), str(metrics.get("mode") or "max")
        lengths: list[Any] = [trainer.get(unit) for unit in ("epochs", "steps")]
        self._epochs, self._steps = (length if is_whole(length) and length > 0 else None for length in lengths)

    def look(self) -> list[dict[str, Any]]:
        """Take what the job has logged since the last call, and return it.

        A job that goes on from a checkpoint writes the file anew, and the rows after the checkpoint once more.
        """
        rows = list(self._new_rows())
        for row in rows:
            self._take(row)
        return rows

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        for row in filter(None, map(row_of, self._lines.new())):
            mark = (row["step"], tuple(row))
            if mark not in self._seen:
                self._seen.add(mark)
                yield row

    def _take(self, row: Mapping[str, Any]) -> None:
        value, epoch = row.get(self.metric), row.get("epoch")
        if value is not None and improves(value, self.best, mode=self.mode):
            self.best = float(value)
        self.step, self.epoch = row["step"], self.epoch if epoch is None else epoch
        if self._steps:
            self.share = min(1.0, self.step / self._steps)
        elif self._epochs and self.epoch is not None:
            self.share = min(1.0, self.epoch / self._epochs)
        if self.share is not None and row.get("time") is not None:
            self._last_time = float(row["time"])
            self._first = self._first or (self._last_time, self.share)

    def eta_seconds(self) -> float | None:
        """Return the seconds to its end by its pace so far; None where that is not known yet."""
        if self._first is None or self.share is None or self.share <= self._first[1]:
            return None
        pace = (self._last_time - self._first[0]) / (self.share - self._first[1])
        return max(0.0, pace * (1.0 - self.share) - (time.time() - self._last_time))
