"""Following a job by the file that it writes its values to, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightkit.common import run_files
from lightkit.common.ranking import improves
from lightkit.common.shapes import is_whole
from lightkit.processes.lines import Lines
from lightkit.runs.reading import row_of
from lightkit.sweep.job import Job, content_of, section_of


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
        content = content_of(self.job.config)
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
