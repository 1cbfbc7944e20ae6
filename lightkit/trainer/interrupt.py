"""Asking a run to end at its next step boundary."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from lightkit.common.errors import of_signal
from lightkit.common.signals import handled, swallowed

_SHOW_CURSOR = b"\x1b[?25h\n"


class Interrupted(SystemExit):
    """A run was asked to end and has saved; the exit status is 128 + the number of the signal.

    Args:
        number: Number of the signal.
        step: Optimizer step of the checkpoint.
    """

    def __init__(self, number: int, step: int) -> None:
        super().__init__(of_signal(number))
        self.number, self.step = number, step

    def __str__(self) -> str:
        return f"{signal.Signals(self.number).name} at step {self.step}"


class AskedToEnd(BaseException):
    """A signal came while the loop had nothing to do but wait; no `except Exception` of a data set stops it."""


class Interrupt:
    """The plain case: nothing ever asks."""

    number = 0
    """The signal that asked, 0 for none."""
    waiting = False
    """Whether the loop only waits for data: then a signal need not wait for the next step."""

    def asked(self) -> bool:
        """Tell whether the run is to end here; for places that every process comes by in the same order."""
        return self.number != 0

    def wait(self, batches: Iterator[Any], *end: Any) -> Any:
        """Return the next batch, or `end` where there is none; a signal ends the wait for it.

        Raises:
            AskedToEnd: One came.
        """
        self.waiting = True
        try:
            if self.number:
                raise AskedToEnd
            return next(batches, *end)
        finally:
            self.waiting = False

    def raise_at(self, step: int) -> None:
        """End the run if it was asked to.

        Raises:
            Interrupted: It was.
        """
        if self.asked():
            raise Interrupted(self.number, step)


class Signals(Interrupt):
    """Notes the first signal for the loops to see; a second one ends the process at once."""

    @contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch the signals inside; what was set before comes back afterwards.

        A signal that is ignored stays ignored, so that `nohup` keeps its meaning. Outside the main thread nothing can
        be caught and nothing is.
        """
        with handled(self._note):
            if threading.current_thread() is threading.main_thread() and (number := swallowed()):
                self._note(number, None)
            yield self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.number:
            self.number = number
        elif signal.Signals(number).name != "SIGHUP":  # a closing terminal sends that one two or three times
            _end_at_once(number)
        if self.waiting:
            self.waiting = False
            raise AskedToEnd


class SharedSignals(Signals):
    """Signals to any of several processes that train together, which all end at the same step.

    Args:
        vote: Exchanges the largest number over the processes; see `lightkit.device.ranks.Ranks.vote`.
    """

    def __init__(self, vote: Callable[[int], int]) -> None:
        self._vote, self._noted = vote, 0

    def asked(self) -> bool:
        """Tell whether the run is to end here, because of a signal to any of the processes."""
        if not self.number:
            self.number = self._vote(self._noted)
        return self.number != 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted and signal.Signals(number).name != "SIGHUP":
            _end_at_once(number)
        self._noted = self._noted or number


def _end_at_once(number: int) -> None:
    """Leave without any clean-up but for the cursor, which the progress bar has hidden."""
    with suppress(OSError, ValueError, AttributeError):
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), _SHOW_CURSOR)
    os._exit(of_signal(number))
