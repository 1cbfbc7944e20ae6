"""Files of the run folder: `metrics.jsonl`, which grows, JSON that is written whole, and how far the run is."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from lightkit.common.names import name_problem
from lightkit.common.reading import parse_object, read_file
from lightkit.common.text import in_one_line, json_text
from lightkit.loggers.base import Logger, Progress
from lightkit.loggers.wording import percent
from lightkit.processes.files import sync_file, write_whole


class JsonlLogger(Logger):
    """Appends `{"step": 50, "epoch": 0, "time": 1.7e9, "train/loss": 0.31, …}`, flushed line by line.

    Values that JSON has no number for (NaN, infinities) are null.

    Args:
        path: The file; made with its folder at the first line.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """Keep these lines; those after them, and a line torn by a crash, are dropped."""
        self.close()
        if self.path.exists():
            write_whole(self.path, "".join(json.dumps(row) + "\n" for row in kept), forced=True)

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Append one line."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(line({"step": step, "epoch": epoch, "time": round(time.time(), 3), **values}))
        self._file.flush()

    def sync(self) -> None:
        """Force the file to the disk, and its name."""
        sync_file(self.path)

    def close(self) -> None:
        """Close the file, its contents safely on disk."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                os.fsync(file.fileno())


def line(row: Mapping[str, Any]) -> str:
    """Return a line of `metrics.jsonl`; numbers that are not finite are null."""
    finite = {name: value if math.isfinite(value) else None for name, value in row.items()}
    return json.dumps(finite) + "\n"


def write_json(path: Path | str, content: Any) -> None:
    """Write readable JSON atomically; NaN and infinities become null, so that every JSON reader takes it.

    Args:
        path: The file; its folder is made where it is missing.
        content: Plain values; paths and other objects are written as text.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json_text(content) + "\n", forced=True)


SECONDS_BETWEEN_WRITES = 1.0
_COUNTS = ("epoch", "step", "total_steps", "batch", "batches")
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
            write_whole(self.path, text, scratch=f"{self.path.name}{_SCRATCH}")

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
    if name_problem(phase) is not None:  # train, val, test or the name of a further set
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
