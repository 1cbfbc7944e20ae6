"""A callback that makes a run last as long as it is told, without using a processor."""

from __future__ import annotations

import time

from lightkit.trainer.callbacks import Callback
from lightkit.trainer.loop import Trainer


class Pause(Callback):
    """Sleeps at the first optimizer step.

    Args:
        seconds: How long.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.is_done = seconds, False

    def on_step(self, trainer: Trainer) -> None:
        """After an optimizer step."""
        if not self.is_done:
            self.is_done = True
            time.sleep(self.seconds)
