"""Following what a run writes down: the last lines of its log, and those that come."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.detached.folders import is_alive
from lightkit.detached.liveness import Standing, look, writes_output
from lightkit.loggers.console import ConsoleLogger
from lightkit.loggers.progress_file import read_progress_file
from lightkit.processes.lines import Lines
from lightkit.runs.catalog import has_members
from lightkit.runs.reading import row_of

POLL_SECONDS = 0.2
"""Time between two looks at what is new."""
_LOOKED_BACK, _INTRODUCTION = 5000, 12
"""Lines of the log that are looked at where somebody attaches, and messages among them that are shown first."""
_RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[A-Z]+) +\S+: (?P<text>.*)")
"""A line of `run.log`; see `lightkit.loggers.runlog`."""
_FIRST = "run     "
"""How the first message of a run begins."""
_OF_VALUES = re.compile(r"\[epoch \d")


def log_of(folder: Path, *, output: bool | None = None) -> Path:
    """Return the file that tells of a run.

    Args:
        folder: Its folder.
        output: What its process printed, `output.log`, or its messages, `run.log`; None takes what it printed where
            that was not on a terminal: a process that died has left its last words there.
    """
    output = writes_output(folder) if output is None else output
    return folder / (run_files.OUTPUT_LOG if output else run_files.LOG)


def follow(folder: Path, lines: Lines, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[list[str]]:
    """Yield what is new, again and again until no process works in a folder.

    Args:
        folder: That of the run or sweep.
        lines: Its log.
        sleep: Waits.
    """
    while is_alive(folder):
        yield lines.new()
        sleep(POLL_SECONDS)
    yield lines.new(torn=True)


def attach(folder: Path, console: ConsoleLogger) -> Standing:
    """Show a run as if it had been started from here, until it ends: its messages, and the live bar.

    Args:
        folder: Its folder.
        console: Where it is shown; closed at the end.

    Returns:
        How it ended.
    """
    log, values = Lines(folder / run_files.LOG, last=_LOOKED_BACK), Lines(folder / run_files.METRICS, last=0)
    written, is_first = 0.0, True
    try:
        for lines in follow(folder, log):
            messages = [text for text in map(_message, lines) if text is not None]
            for text in _introduction(messages) if is_first else messages:
                console.message(text)
            is_first = False
            # The table of several models says what they have reached.
            for row in [] if has_members(folder) else filter(None, map(_row, values.new())):
                step, epoch = row.pop("step"), row.pop("epoch")
                console.scalars(row, step=step, epoch=epoch)
            shown = read_progress_file(folder / run_files.PROGRESS)
            if shown is None or shown.written == written:
                continue
            written = shown.written
            if shown.progress is not None:
                console.progress(shown.progress)
            if shown.table is not None:
                console.live_table(partial(_first_rows, *shown.table))
    finally:
        console.close()
    return look(folder)


def _introduction(messages: Sequence[str]) -> Sequence[str]:
    """Return what somebody who attaches is shown of the messages so far: the last of this part of the run."""
    begins = [at for at, text in enumerate(messages) if text.startswith(_FIRST)]
    return messages[begins[-1] if begins else 0 :][-_INTRODUCTION:]


def _message(line: str) -> str | None:
    """Return a line of `run.log` as the run's own console has it; None for values, which `metrics.jsonl` has too."""
    record = _RECORD.fullmatch(line)
    if record is None:
        return line
    if record["level"] in ("WARNING", "ERROR"):
        return f"{record['level'].lower()}: {record['text']}"
    return None if _OF_VALUES.match(record["text"]) else record["text"]


def _row(line: str) -> dict[str, Any]:
    """Return a row of `metrics.jsonl` without its time; empty for a line that is none."""
    found = row_of(line)
    counts = {name: found[name] for name in ("step", "epoch") if found.get(name) is not None}
    values = {name: math.nan if value is None else float(value) for name, value in found.items() if "/" in name}
    return {**counts, **values} if len(counts) == 2 else {}


def _first_rows(
    title: str, heads: list[str], rows: list[list[str]], most: int
) -> tuple[str, list[str], list[list[str]]]:
    return title, heads, rows[:most]
