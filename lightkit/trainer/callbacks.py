"""Hooks into the loop, for what is not part of every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from lightkit.common.ranking import improves
from lightkit.common.text import counted
from lightkit.trainer.state import State


class Training(Protocol):
    """What a callback sees of a `Trainer`."""

    model: nn.Module
    """The network, as the loop calls it."""
    optimizer: Optimizer
    """Its optimizer."""
    state: State
    """The counters, and the newest values."""

    def log(self, values: Mapping[str, float]) -> None:
        """Log values of the callback's own with this step."""

    def stop(self, reason: str) -> None:
        """End training after the step under way."""


class Callback:
    """Base of all callbacks: every hook does nothing. Only overridden `on_step` hooks cost anything.

    A hook may read `trainer.model`, `trainer.optimizer` and `trainer.state`, log with `trainer.log({"extra/x": 1.0})`,
    and end training with `trainer.stop("reason")`. Name the subclass in the configuration:
    `trainer.callbacks.norms._target_: my_project.Norms`.
    """

    def on_fit_start(self, trainer: Training) -> None:
        """Act before the first step, after a checkpoint was loaded."""

    def on_step(self, trainer: Training) -> None:
        """Act after every optimizer step."""

    def on_validation(self, trainer: Training, values: dict[str, float]) -> None:
        """Act after every validation, with its values by name (`val/accuracy`)."""

    def on_epoch(self, trainer: Training, values: dict[str, float]) -> None:
        """Act after every epoch, with the training values by name."""

    def on_fit_end(self, trainer: Training) -> None:
        """Act after the last step."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors for a checkpoint to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what a checkpoint kept."""


class EarlyStopping(Callback):
    """Ends training after `patience` validations without an improvement.

    Args:
        monitor: Name of the value to watch, such as `val/loss`.
        mode: Whether `min` or `max` is better.
        patience: Validations without improvement before training ends, at least 1.
        min_delta: Smallest change that counts, in units of the value.
    """

    def __init__(self, monitor: str, mode: str, *, patience: int, min_delta: float = 0.0) -> None:
        self.monitor, self.mode, self.patience, self.min_delta = monitor, mode, patience, min_delta
        self.best: float | None = None
        self.waited = 0

    def on_validation(self, trainer: Training, values: dict[str, float]) -> None:
        """Count validations that did not improve on the best by `min_delta`; NaN never improves."""
        if self.monitor in values:
            self._judge(trainer, values[self.monitor])

    def on_epoch(self, trainer: Training, values: dict[str, float]) -> None:
        """Count epochs likewise, for a value of the training split."""
        if self.monitor in values:
            self._judge(trainer, values[self.monitor])

    def _judge(self, trainer: Training, value: float) -> None:
        if improves(value, self.best, mode=self.mode, min_delta=self.min_delta):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            trainer.stop(f"early stopping: {self.monitor} has not improved {counted(self.waited, 'time')} in a row")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the validations waited."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where the checkpoint stood."""
        self.best, self.waited = state["best"], state["waited"]
