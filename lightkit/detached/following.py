"""Following what a run writes down: the last lines of its log, and those that come; and ending it."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import DONE, FAILED, INTERRUPTED, UserError, of_signal
from lightkit.detached.folders import is_alive
from lightkit.detached.liveness import ALIVE, Standing, look, writes_output
from lightkit.loggers.console import ConsoleLogger
from lightkit.loggers.files import read_progress_file
from lightkit.processes.files import Lines
from lightkit.runs.catalog import has_members
from lightkit.runs.reading import read_result, row_of

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
    with closing(console):
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
                console.live_table(partial(lambda table, most: (*table[:2], table[2][:most]), shown.table))
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


_SIGNAL_IN_REASON = re.compile(r"\b(SIG[A-Z0-9]+)\b")


def ask_to_end(standing: Standing, *, now: bool = False) -> bool:
    """Ask the process of a run to save and to end, or kill it.

    A second request changes nothing: the run would take a second signal as the wish to end at once, without saving.

    Args:
        standing: The run.
        now: Kill it; what it learnt since its last checkpoint is lost.

    Returns:
        Whether it was asked; False where that had been done before, and where it has ended meanwhile.

    Raises:
        UserError: It runs on another machine, it belongs to another user, or nobody knows which process it is.
    """
    folder, mark = standing.folder, standing.folder / run_files.SWEEP_STOP
    if standing.host not in (None, socket.gethostname()):
        fix = f"there: lightkit stop {folder}"
        raise UserError(f"it runs on another machine, {standing.host}", key=str(folder), fix=fix, exit_code=FAILED)
    if standing.pid is None:
        what = "it is not known which process runs there"
        raise UserError(what, key=str(folder), fix="end it where it was started", exit_code=FAILED)
    if not now and _is_asked(mark, folder):
        return False
    number = signal.SIGKILL if now else signal.SIGTERM
    if not now:
        with suppress(OSError):  # a full disk: then a second request is not known as one
            mark.unlink(missing_ok=True)  # a link of that name is not written through
            mark.touch()
    try:
        return _send(standing, number)
    except PermissionError as error:
        what = f"process {standing.pid} belongs to another user"
        raise UserError(what, key=str(folder), exit_code=FAILED) from error


def exit_status(standing: Standing) -> int:
    """Return the status that the process of a run has ended with, as far as that is known.

    Args:
        standing: A run or a sweep that is not alive.
    """
    if standing.state in ("finished", "paused", "pruned"):
        return DONE
    result = read_result(standing.folder)
    known = result.get("exit_status")
    if standing.state in ("failed", "interrupted") and type(known) is int and 0 <= known <= 255:
        return known
    if standing.state != "interrupted":
        return FAILED
    found = _SIGNAL_IN_REASON.search(str(result.get("reason") or ""))
    number = getattr(signal, found[1], None) if found else None
    return of_signal(number) if isinstance(number, signal.Signals) else INTERRUPTED


def _is_asked(mark: Path, folder: Path) -> bool:
    """Tell whether the process that runs in a folder now was asked to end before."""
    with suppress(OSError):
        return mark.stat().st_mtime >= max(
            (folder / name).stat().st_mtime for name in (run_files.LOCK, run_files.JOB_LOCK) if (folder / name).exists()
        )
    return False


def _send(standing: Standing, number: signal.Signals) -> bool:
    """Send a signal to the process that holds the lock, and to no other that has its number by now."""
    pid = standing.pid
    assert pid is not None, "checked"
    handle: int | None = None
    with suppress(OSError, AttributeError):  # an old kernel, another system; or it has gone, as the lock tells
        handle = os.pidfd_open(pid)
    try:
        # The process of this number is held; if the run still is this process, no other can come between.
        again = look(standing.folder)
        if again.state not in ALIVE or again.pid != pid:
            return False
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True
