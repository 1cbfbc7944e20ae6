"""`lightkit logs` and `lightkit attach`: what a run prints, and how far it is; and what else is shown as it goes on."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import complain, say
from lightkit.common.errors import UserError
from lightkit.common.text import visible
from lightkit.runs.catalog import project

# What looks at runs is imported inside the functions: it takes a moment, and a mistake is told before.

USUAL_SECONDS = "2"
"""Seconds between two pictures where `--watch` says nothing else."""
_SHORTEST_SECONDS = 0.1
_POLL_SECONDS = 0.1
PATIENCE_SECONDS = 5.0
"""How long what was asked to end may take, before the way to kill it is told."""


def logs(args: list[str]) -> int:
    """Show the end of a log, and go on with it where that is asked for."""
    options = Parser("logs", "run", lines="50").read(args)
    last = None
    if options.lines != "all":
        what, expected = "not a number of lines", "a whole number, or all"
        last = whole_number("--lines", options.lines, what=what, expected=expected)
    if options.log and options.output:
        raise UserError("one of them at a time", key="lightkit logs", received="--log --output")
    from lightkit.detached.folders import find_folder
    from lightkit.detached.following import Lines, follow, log_of

    folder = find_folder(options.run, project())
    path = log_of(folder, output=options.output if options.output or options.log else None)
    lines = Lines(path, last=last)
    if not options.follow and not path.exists():
        complain(f"nothing is written yet: there is no {path}")
    with suppress(KeyboardInterrupt):
        for new in follow(folder, lines) if options.follow else [lines.new(torn=True)]:
            for line in new:
                say(line)
            sys.stdout.flush()
    return 0


def attach(args: list[str]) -> int:
    """Show a run until it ends or Ctrl-C is pressed."""
    options = Parser("attach", "run").read(args)
    from lightkit.detached.folders import find_folder, is_alive, is_sweep
    from lightkit.detached.following import attach as show
    from lightkit.detached.following import exit_status
    from lightkit.detached.liveness import look
    from lightkit.loggers.console import ConsoleLogger

    root, run = project(), shlex.quote(options.run)
    folder = find_folder(options.run, root)
    if not is_alive(folder):
        standing = look(folder)
        say(f"{standing.describe(root)}\nwhat it told:  lightkit logs {run}")
        return exit_status(standing)
    if (standing := look(folder)).state == "starting":
        say(f"process {standing.pid or 'unknown'} builds data and model; it shows up here as soon as it trains")
    try:
        if is_sweep(folder):
            from lightkit.cli.sweep import watch_sweep

            watch_sweep(folder)
            standing = look(folder)
        else:
            standing = show(folder, ConsoleLogger())
    except KeyboardInterrupt:
        say(f"detached, and it goes on; back to it:  lightkit attach {run}   to end it:  lightkit stop {run}")
        return 0
    complain(standing.describe(root))
    return exit_status(standing)


def read_seconds(text: str) -> float:
    """Read the value of `--watch`; without one it is the usual.

    Raises:
        UserError: It is not a time, or too short.
    """
    try:
        seconds = float(text or USUAL_SECONDS)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_SECONDS <= seconds < math.inf:
        expected = f"{_SHORTEST_SECONDS} seconds or more"
        raise UserError("not a time", key="--watch", received=text, expected=expected)
    return seconds


def patiently(is_over: Callable[[], bool], kill: str) -> None:
    """Wait until what was asked to end is over, and say once how to kill it where that takes long.

    Args:
        is_over: Tells whether it is.
        kill: The command that kills it; empty where it is killed already.
    """
    due = time.monotonic() + PATIENCE_SECONDS
    while not is_over():
        if kill and time.monotonic() >= due:
            complain(f"it still saves, or hangs; to kill it, and lose what is not saved:  {kill}")
            kill = ""
        time.sleep(_POLL_SECONDS)


def watch(show: Callable[[], str], seconds: float, *, live: bool, stamped: bool = True) -> None:
    """Show it until it is interrupted: on a terminal in place, elsewhere one after the other.

    Args:
        show: Makes the text.
        seconds: Time between two pictures.
        live: Draw in place, on a screen of its own.
        stamped: Elsewhere, put the time before each; a program that reads them has no use for it.
    """

    def put_plainly(text: str) -> None:
        say(f"{datetime.now():%H:%M:%S}  {text}\n" if stamped else text)
        sys.stdout.flush()

    with _whole_screen() if live else nullcontext(put_plainly) as put:
        try:
            while True:
                put(show())
                time.sleep(seconds)
        except KeyboardInterrupt:
            return


@contextmanager
def _whole_screen() -> Iterator[Callable[[str], None]]:
    """Open a screen of its own, without a cursor; what was on the terminal before is there again afterwards."""

    def put(text: str) -> None:
        head = f"{datetime.now():%H:%M:%S}, Ctrl-C ends it"
        lines = [head, "", *visible(text).splitlines()][: max(1, shutil.get_terminal_size().lines - 1)]
        # Home, each line and the rest of the screen cleared as they are written: nothing flickers.
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield put
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
