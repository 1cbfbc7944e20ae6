"""The signals that ask a program to end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from lightkit.common.errors import of_signal

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Ctrl-C, `kill` and `scancel`, a closed terminal, and what schedulers send some time before they kill."""
_RAISED = list[list[int]]()
"""What `exiting` has raised, a list for each that is entered."""


def numbers(*left_out: str) -> list[signal.Signals]:
    """Return the numbers of the signals of this system, but for those left out by name."""
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name) and name not in left_out]


def respected(*left_out: str) -> list[signal.Signals]:
    """Return the signals that are not ignored: what `nohup` or a shell script switched off stays off."""
    return [number for number in numbers(*left_out) if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def exiting() -> Iterator[None]:
    """Raise `SystemExit(128 + number)` for these signals, so that the program tidies up; Ctrl-C does so anyway.

    Outside the main thread nothing can be caught and nothing is.
    """
    noted: list[int] = []
    _RAISED.append(noted)

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        noted.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(of_signal(number))

    try:
        with handled(leave):
            yield
    except Exception as error:
        if not noted:
            raise
        # Code that is left half-way, OmegaConf's for one, can fail in its own tidying up.
        raise SystemExit(of_signal(noted[0])) from error
    finally:
        _RAISED.pop()


def swallowed() -> int:
    """Return the signal whose exception has not ended the program, as whoever asks still runs; 0 where there is none.

    Python ignores what is raised while it takes an object apart, and so do libraries here and there.
    """
    return _RAISED[-1][0] if _RAISED and _RAISED[-1] else 0


@contextmanager
def held() -> Iterator[None]:
    """Hold the first of these signals back to the end; a second one ends the process at once.

    For an import of compiled code, which aborts the whole process when an exception comes in its midst.
    """
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if noted:
            os._exit(of_signal(number))
        noted.append(number)

    with handled(note):
        yield
    for number in noted:
        signal.raise_signal(number)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals that ask this program to end while inside; what is ignored stays so.

    Only the main thread of a process can: elsewhere nothing changes.

    Args:
        handler: Gets the number of the signal, and the frame that it came in.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in respected()} if here else {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def waiting() -> Iterator[None]:
    """Let these signals wait while inside: Python forgets in a new process what comes while that is being forked.

    For processes of one thread, as others take the signals meanwhile.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
