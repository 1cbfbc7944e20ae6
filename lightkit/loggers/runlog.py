"""`run.log`: messages, warnings and errors of a run, in its folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit.loggers.base import Logger
from lightkit.loggers.wording import number, plain_table, summary_line

_LOG = logging.getLogger(__name__)
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


@contextmanager
def run_log(path: Path | str) -> Iterator[logging.Handler]:
    """Write lightkit's log records and Python's warnings to a file while the block runs.

    The root logger, other libraries' loggers and what warnings print stay as they are; a record is appended, so a
    resumed run goes on in the same file.

    Args:
        path: The file.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger = logging.getLogger("lightkit")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        with _noted_warnings(handler):
            yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


@contextmanager
def _noted_warnings(handler: logging.Handler) -> Iterator[None]:
    """Warnings are shown as before and noted in the log too."""
    shown: Any = warnings.showwarning

    def note(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
        text = f"{category.__name__}: {message} ({filename}:{lineno})"
        handler.handle(logging.LogRecord("warnings", logging.WARNING, filename, lineno, text, None, None))
        shown(message, category, filename, lineno, file, line)

    warnings.showwarning = note
    try:
        yield
    finally:
        if warnings.showwarning is note:
            warnings.showwarning = shown


class LogLogger(Logger):
    """Messages, tables and values of whole splits as log records: what `run.log` tells, whatever the console shows."""

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Only the values of whole splits; the series is in metrics.jsonl."""
        if any(name.endswith("/loss") for name in values):
            _LOG.info("%s", summary_line(values, step=step, epoch=epoch, progress=None))

    def message(self, text: str) -> None:
        """One record."""
        _LOG.info("%s", text)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """One record of several lines."""
        cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
        _LOG.info("%s", plain_table(title, columns, cells))
