"""What a run has written down, as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lightkit.common import run_files
from lightkit.common.reading import read_tail
from lightkit.runs.index import read_record
from lightkit.runs.reading import read_metrics, read_result
from lightkit.runs.record import RunRecord


@dataclass(frozen=True)
class Point:
    """A logged value."""

    step: int
    """Optimizer steps done."""
    epoch: int
    """Epochs done."""
    value: float
    """The value; NaN where it was no number."""


@dataclass(frozen=True)
class History:
    """A run as its files tell it."""

    folder: Path
    """The run's."""
    record: RunRecord
    """Its configuration and how it ended."""
    result: Mapping[str, Any]
    """The content of `result.json`; empty as long as the run has not ended."""
    rows: Sequence[Mapping[str, Any]]
    """All that it has logged."""

    @classmethod
    def of(cls, folder: Path) -> History:
        """Read the files of a run; what is missing or damaged stays empty."""
        return cls(folder, read_record(folder), read_result(folder), read_metrics(folder))

    def curve(self, name: str) -> list[Point]:
        """Return the values of a name in their order."""
        return [
            Point(
                int(row.get("step", 0)), int(row.get("epoch", 0)), math.nan if row[name] is None else float(row[name])
            )
            for row in self.rows
            if name in row
        ]

    @property
    def mode(self) -> str:
        """Tell whether `min` or `max` of the monitored value is better."""
        found = self.record.keys.get("metrics.mode")
        return found if found in ("min", "max") else "min" if self.record.metric.endswith("loss") else "max"

    def log_tail(self, characters: int = 20_000) -> str:
        """Return the end of what the run has said."""
        return "\n".join(read_tail(self.folder / name, characters) for name in (run_files.LOG, run_files.OUTPUT_LOG))


def ends(points: Sequence[Point], share: float = 0.1) -> tuple[float, float]:
    """Return the median of the first and of the last values of a curve.

    Args:
        points: The curve, not empty.
        share: How much of it each of the two is.
    """
    values = [point.value for point in points if not math.isnan(point.value)]
    count = max(1, round(share * len(values)))
    return median(values[:count]), median(values[-count:])
