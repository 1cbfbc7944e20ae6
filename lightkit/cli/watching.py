"""Showing the same thing again and again, on a terminal in place."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from lightkit.cli.terminal import say
from lightkit.common.text import visible


def watch(show: Callable[[], str], seconds: float, *, live: bool) -> None:
    """Show it until it is interrupted: on a terminal in place, elsewhere one after the other."""
    with _whole_screen() if live else _plainly() as put:
        try:
            while True:
                put(show())
                time.sleep(seconds)
        except KeyboardInterrupt:
            return


@contextmanager
def _plainly() -> Iterator[Callable[[str], None]]:
    def put(text: str) -> None:
        say(text if text.startswith("{") else f"{datetime.now():%H:%M:%S}  {text}\n")
        sys.stdout.flush()

    yield put


@contextmanager
def _whole_screen() -> Iterator[Callable[[str], None]]:
    """A screen of its own, without a cursor; what was on the terminal before is there again afterwards."""

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
