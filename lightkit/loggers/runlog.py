"""`run.log`: messages, warnings and errors of a run, in its folder."""

from __future__ import annotations

import contextlib
import logging
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit.common.text import visible
from lightkit.loggers.base import Logger
from lightkit.loggers.wording import number, plain_table, summary_line

_LOG = logging.getLogger(__name__)
_LIBRARY = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<frozen ")
_OWN = "run_log"
"""Attribute of a record that belongs into one file only, though several may be open: members of an ensemble have each
their own."""
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


@contextmanager
def run_log(path: Path | str) -> Iterator[logging.Handler]:
    """Write lightkit's log records and Python's warnings to a file while the block runs.

    Where the program has set up no logging, lightkit's warnings are on standard error as well, as always in Python. A
    log that can no longer be written, on a full disk say, falls silent: it must not cost the run.

    Warnings of libraries, Python's and logged ones that no handler takes, go to the file only: nobody who trains can
    act on them. Those that a user's own code gives are printed as ever. The root logger and other libraries' loggers
    stay as they are; a record is appended, so a resumed run goes on in the same file.

    Args:
        path: The file.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = _File(file, encoding="utf-8")
    handler.addFilter(lambda record: getattr(record, _OWN, file) == file)
    handler.setFormatter(_Formatter(_FORMAT))
    logger = logging.getLogger("lightkit")
    level, echo = logger.level, None if logger.hasHandlers() else _Echo(logging.WARNING)
    for added in filter(None, (handler, echo)):
        logger.addHandler(added)
    logger.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        with _noted(handler):
            yield handler
    finally:
        for added in filter(None, (handler, echo)):
            logger.removeHandler(added)
        logger.setLevel(level)
        with contextlib.suppress(OSError):
            handler.close()


class _Formatter(logging.Formatter):
    """Lines that may be shown on a terminal as they are."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _File(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Echo(logging.Handler):
    """Warnings; errors are raised too, and told by whoever catches them."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"warning: {visible(record.getMessage())}\n")
                sys.stderr.flush()


@contextmanager
def _noted(handler: logging.Handler) -> Iterator[None]:
    """Note warnings and records that no handler takes; those that do not come from a library are shown as before."""
    shown: Any = warnings.showwarning

    def note(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
        text = f"{category.__name__}: {message} ({filename}:{lineno})"
        handler.handle(logging.LogRecord("warnings", logging.WARNING, filename, lineno, text, None, None))
        if not _of_library(filename):
            shown(message, category, filename, lineno, file, line)

    last_resort = logging.lastResort
    noting = _LastResort(handler, last_resort)
    warnings.showwarning, logging.lastResort = note, noting
    try:
        yield
    finally:
        if logging.lastResort is noting:
            logging.lastResort = last_resort
        if warnings.showwarning is note:
            warnings.showwarning = shown


class _LastResort(logging.Handler):
    """Takes the records that no handler takes, which Python prints."""

    def __init__(self, file: logging.Handler, printed: logging.Handler | None) -> None:
        super().__init__(logging.WARNING)
        self.file, self.printed = file, printed

    def emit(self, record: logging.LogRecord) -> None:
        self.file.handle(record)
        if self.printed is not None and not _of_library(record.pathname):
            self.printed.handle(record)


def _of_library(filename: str) -> bool:
    """Tell whether a file is lightkit's, that of another installed package or of Python itself."""
    return bool({"site-packages", "dist-packages"} & set(Path(filename).parts)) or filename.startswith(_LIBRARY)


class LogLogger(Logger):
    """Messages, tables and values of whole splits as log records: what `run.log` tells, whatever the console shows.

    Args:
        path: The file that takes them; None for all that are open.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._extra = None if path is None else {_OWN: Path(path)}

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Log the values of whole splits only; the series is in metrics.jsonl."""
        if any(name.endswith("/loss") for name in values):
            _LOG.info("%s", summary_line(values, step=step, epoch=epoch), extra=self._extra)

    def message(self, text: str) -> None:
        """Log one record."""
        _LOG.info("%s", text, extra=self._extra)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Log one record of several lines."""
        cells = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
        _LOG.info("%s", plain_table(title, columns, cells), extra=self._extra)
