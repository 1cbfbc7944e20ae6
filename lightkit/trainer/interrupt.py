"""Asking a run to end at its next step boundary."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
"""Signals that ask a run to save and end; which of them there are depends on the system."""


class Interrupted(SystemExit):
    """A run was asked to end and has saved; the exit status is 128 + the number of the signal.

    Args:
        number: Number of the signal.
        step: Optimizer step of the checkpoint.
    """

    def __init__(self, number: int, step: int) -> None:
        super().__init__(128 + number)
        self.number, self.step = number, step

    def __str__(self) -> str:
        return f"{signal.Signals(self.number).name} at step {self.step}"


class Interrupt:
    """The plain case: nothing ever asks. `number` is the signal that did, 0 for none."""

    number = 0


class Signals(Interrupt):
    """Notes the first signal for the loops to see; a second one ends the process at once."""

    @contextmanager
    def caught(self) -> Iterator[Signals]:
        """Catch the signals inside; what was set before comes back afterwards.

        A signal that is ignored stays ignored, so that `nohup` keeps its meaning. Outside the main thread nothing can
        be caught and nothing is.
        """
        before = self._install() if threading.current_thread() is threading.main_thread() else {}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _install(self) -> dict[int, Any]:
        numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
        wanted = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        return {number: signal.signal(number, self._note) for number in wanted}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number:
            os._exit(128 + number)
        self.number = number
