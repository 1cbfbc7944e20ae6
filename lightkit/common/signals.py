"""The signals that ask a program to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Ctrl-C, `kill` and `scancel`, a closed terminal, and what schedulers send some time before they kill."""


def numbers(*left_out: str) -> list[signal.Signals]:
    """Those of this system, but for the ones left out by name."""
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name) and name not in left_out]


def respected(*left_out: str) -> list[signal.Signals]:
    """Those of them that are not ignored: what `nohup` or a shell script switched off stays off."""
    return [number for number in numbers(*left_out) if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def exiting() -> Iterator[None]:
    """Inside, these signals raise `SystemExit(128 + number)`, so that the program tidies up; Ctrl-C does so anyway.

    Outside the main thread nothing can be caught and nothing is.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, _exit) for number in respected("SIGINT")} if here else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
