"""Files of the run folder: `metrics.jsonl`, which grows line by line, and JSON that is written whole."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lightkit.loggers.base import Logger
from lightkit.loggers.environment import environment
from lightkit.loggers.runlog import run_log
from lightkit.processes.files import sync_file, write_whole

__all__ = [
    "JsonlLogger",
    "environment",
    "plain",
    "run_log",
    "write_json",
]


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
    text = json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text, forced=True)


def plain(content: Any) -> Any:
    """Reduce nested content to what JSON knows."""
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple | set | frozenset):
        return [plain(value) for value in content]
    if content is None or isinstance(content, bool | int | str):
        return content
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    return str(content)
