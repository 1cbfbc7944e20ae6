"""What is shown again and again until it is interrupted."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime

from lightkit.cli.terminal import complain, say
from lightkit.common.errors import UserError
from lightkit.common.text import visible

USUAL_SECONDS = "2"
"""Seconds between two pictures where `--watch` says nothing else."""
_SHORTEST_SECONDS = 0.1
PATIENCE_SECONDS = 5.0
"""How long what was asked to end may take, before the way to kill it is told."""


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


class Hint:
    """Says once how to kill what does not end, some seconds after it was asked to.

    Args:
        command: What kills it.
        seconds: How long it may take without a word.
    """

    def __init__(self, command: str, seconds: float = PATIENCE_SECONDS) -> None:
        self._command, self._due, self._told = command, time.monotonic() + seconds, False

    @property
    def left(self) -> float:
        """Seconds until it is said."""
        return max(0.0, self._due - time.monotonic())

    def tell_when_due(self) -> None:
        """Say it, if it is time and was not said."""
        if not self._told and not self.left:
            self._told = True
            complain(f"it still saves, or hangs; to kill it, and lose what is not saved:  {self._command}")


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
