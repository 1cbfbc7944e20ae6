"""`metrics.csv`: the rows of `metrics.jsonl` as a table."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.loggers.base import Logger
from lightkit.processes.files import sync_file, write_whole


class CsvLogger(Logger):
    """Writes a line for each row of values, with a column for each name. A new name makes the table anew.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / run_files.METRICS_TABLE
        self._rows = list[Mapping[str, Any]]()
        self._names = list[str]()

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin with these rows."""
        self._rows = [*kept]
        self._names = [*dict.fromkeys(["step", "epoch", "time", *(name for row in kept for name in row)])]
        if self._rows or self.path.exists():
            self._write_all()

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Write one line."""
        row = {"step": step, "epoch": epoch, "time": round(time.time(), 3), **values}
        self._rows.append({name: value if math.isfinite(value) else None for name, value in row.items()})
        new = [name for name in values if name not in self._names]
        self._names += new
        if new or not self.path.exists():
            self._write_all()
            return
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(self._text(self._rows[-1:]))

    def sync(self) -> None:
        """Force the file to the disk."""
        sync_file(self.path)

    def _write_all(self) -> None:
        write_whole(self.path, self._text([dict(zip(self._names, self._names)), *self._rows]))

    def _text(self, rows: Sequence[Mapping[str, Any]]) -> str:
        text = io.StringIO()
        csv.DictWriter(text, self._names, lineterminator="\n").writerows(rows)
        return text.getvalue()
