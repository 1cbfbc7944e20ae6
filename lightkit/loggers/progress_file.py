"""How far a run is, in a small file of its folder: what `lightkit attach` and `lightkit ps` show of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightkit.common.reading import parse_object, read_file
from lightkit.common.text import in_one_line
from lightkit.loggers.base import Logger, Progress
from lightkit.loggers.wording import percent
from lightkit.processes.files import replacing

SECONDS_BETWEEN_WRITES = 1.0
_COUNTS = ("epoch", "step", "total_steps", "batch", "batches")
_PHASES = ("train", "val", "test")
_LARGEST_COUNT = 2**53
_LARGEST_TABLE = 100
_SCRATCH = ".new"


@dataclass(frozen=True)
class ShownProgress:
    """What a run has written of its progress.

    Attributes:
        written: Second at which it did so.
        share: Share of the whole run that is done, 0 to 1.
        eta_seconds: Seconds to its end; None where they are not known.
        progress: That of a run of one model; None for one of several.
        table: Headline, heads and rows about the models of a run of several; None for one of one.
    """

    written: float
    share: float
    eta_seconds: float | None
    progress: Progress | None = None
    table: tuple[str, list[str], list[list[str]]] | None = None


class ProgressFile(Logger):
    """Writes the newest progress about once a second, so that another process can show it.

    The file is replaced as a whole, so nobody reads half of it. It is not forced to the disk, as nothing that a run
    needs is in it. It goes when the run ends; of one that was killed it stays. A file that cannot be written costs no
    run.

    Args:
        path: The file; None writes none.
        seconds: Time between two writes.
    """

    def __init__(self, path: Path | str | None, seconds: float = SECONDS_BETWEEN_WRITES) -> None:
        self.path = None if path is None else Path(path)
        self.seconds = seconds
        self._next = 0.0

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """Forget what an earlier part of the run has left."""
        self.close()

    def progress(self, progress: Progress) -> None:
        """Write the progress of one model, unless that was done a moment ago."""
        values = {name: float(value) for name, value in progress.values.items() if math.isfinite(value)}
        facts = {"share": percent(progress), "eta_seconds": progress.eta_seconds}
        self.write(lambda: {**facts, "progress": {**asdict(progress), "values": values}})

    def write(self, make: Callable[[], Mapping[str, Any]]) -> None:
        """Write what is made now, unless something was written a moment ago.

        Args:
            make: Makes the content: `share`, `eta_seconds`, and `progress` or `table`.
        """
        now = time.monotonic()
        if self.path is None or now < self._next:
            return
        self._next = now + self.seconds
        with suppress(OSError, ValueError):
            text = json.dumps({"written": round(time.time(), 3), **make()}, allow_nan=False)
            with replacing(self.path, scratch=f"{self.path.name}{_SCRATCH}") as scratch:
                scratch.write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Take the file away."""
        self._next = 0.0
        if self.path is not None:
            for path in (self.path, self.path.with_name(f"{self.path.name}{_SCRATCH}")):
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def read_progress_file(path: Path | str) -> ShownProgress | None:
    """Read what a `ProgressFile` has written; anybody may have written it.

    Args:
        path: The file.

    Returns:
        None where there is none, or none that can be read.
    """
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        found = parse_object(read_file(Path(path)))
        left = found["eta_seconds"]
        return ShownProgress(
            written=_number(found["written"]),
            share=min(1.0, max(0.0, _number(found["share"]))),
            eta_seconds=None if left is None else _number(left),
            progress=_progress(found["progress"]) if "progress" in found else None,
            table=_table(found["table"]) if "table" in found else None,
        )
    return None


def _progress(found: Any) -> Progress:
    epochs, phase, left = found["epochs"], found["phase"], found["eta_seconds"]
    if phase not in _PHASES:
        raise ValueError(phase)
    return Progress(
        **{name: _count(found[name]) for name in _COUNTS},
        epochs=None if epochs is None else _count(epochs),
        phase=phase,
        values={str(name): _number(value) for name, value in found["values"].items()},
        samples_per_second=_number(found["samples_per_second"]),
        eta_seconds=None if left is None else _number(left),
    )


def _table(found: Any) -> tuple[str, list[str], list[list[str]]]:
    title, columns, rows = found
    heads = [in_one_line(str(column)) for column in columns[:_LARGEST_TABLE]]
    cells = [[in_one_line(str(cell)) for cell in row] for row in rows[:_LARGEST_TABLE]]
    return in_one_line(str(title)), heads, [row for row in cells if len(row) == len(heads)]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_COUNT:
        raise ValueError(value)
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)
