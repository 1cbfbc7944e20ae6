"""`logger.tensorboard.histograms`: how weights and gradients are distributed, every so many steps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lightkit.common.modules import whole
from lightkit.trainer.callbacks import Callback, Training

KEY = "logger.tensorboard.histograms"
"""Name among the callbacks; with its dots it can be nobody else's."""


class Histograms(Callback):
    """Logs the distribution of each parameter that trains, and of its gradient before clipping.

    Args:
        every: Optimizer steps between two histograms.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_before_update(self, trainer: Training) -> None:
        """Log the gradients of the step under way."""
        if (trainer.state.step + 1) % self.every == 0:
            self._log(trainer, "gradients", trainer.gradients(), trainer.state.step + 1)

    def on_step(self, trainer: Training) -> None:
        """Log the weights after a step."""
        if trainer.state.step % self.every == 0:
            self._log(trainer, "weights", trainer.parameters(), trainer.state.step)

    def _log(self, trainer: Training, kind: str, tensors: Mapping[str, Tensor], step: int) -> None:
        for name, tensor in tensors.items():
            values = whole(tensor.detach())  # in every process, of which each may hold a part
            values = values.coalesce().values() if values.is_sparse else values
            trainer.logger.histogram(f"{kind}/{name}", values, step=step)
