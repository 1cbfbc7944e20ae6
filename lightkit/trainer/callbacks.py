"""Hooks into the loop, for what is not part of every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.ranking import improves
from lightkit.common.text import counted
from lightkit.loggers.base import Logger
from lightkit.trainer.state import State

if TYPE_CHECKING:
    from lightkit.trainer.step import Stepper


@dataclass(frozen=True)
class RunInfo:
    """What a callback may know of its run; empty where training goes on without one."""

    name: str = ""
    """Name of the run."""
    folder: Path | None = None
    """Folder of the run, or of the member of an ensemble."""
    config: Any = field(default_factory=dict)
    """The configuration, which cannot be changed: `run.config.optim.lr`."""
    git: Mapping[str, Any] | None = None
    """State of the project's repository as in `environment.json`; None where it is in none."""


class Training(Protocol):
    """What a callback sees of a `Trainer`."""

    model: nn.Module
    """The network, as the loop calls it."""
    optimizer: Optimizer
    """Its optimizer."""
    state: State
    """The counters, and the newest values."""
    stepper: Stepper
    """What makes the steps: `loss` and `outputs` of the newest batch."""
    run: RunInfo
    """The run: name, folder, configuration, git state."""
    logger: Logger
    """Takes figures, images, texts and histograms: `trainer.logger.figure("extra/x", figure, step=trainer.state.step)`.
    Numbers go through `log`, which a resume counts on."""

    def rows(self) -> Tensor:
        """Return the rows of the data set in the step under way, `(B,)` int64, in their order; before its update."""

    def log(self, values: Mapping[str, float]) -> None:
        """Log values of the callback's own with this step."""

    def stop(self, reason: str) -> None:
        """End training after the step under way."""

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters that train by the names of `lightkit params`, whatever wraps the model."""

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients by the same names, in their true size with fp16 too: in `on_before_update`."""


class Callback:
    """Base of all callbacks: every hook does nothing, and only those that are overridden are called.

    A hook may read `trainer.model`, `trainer.optimizer`, `trainer.state` and `trainer.run`, log numbers with
    `trainer.log({"extra/x": 1.0})` and pictures with `trainer.logger`, and end training with `trainer.stop("reason")`.
    Name the subclass in the configuration: `trainer.callbacks.norms._target_: my_project.Norms`.
    """

    def on_fit_start(self, trainer: Training) -> None:
        """Act before the first step, after a checkpoint was loaded."""

    def on_batch(self, trainer: Training, loss: Tensor, outputs: Any) -> None:
        """Act after the backward pass of every batch, with its loss, 0-d, and its outputs as metrics get them."""

    def on_before_update(self, trainer: Training) -> None:
        """Act before every update, with the gradients of the whole step, before clipping: see `gradients`."""

    def on_step(self, trainer: Training) -> None:
        """Act after every optimizer step."""

    def on_validation(self, trainer: Training, values: dict[str, float]) -> None:
        """Act after every validation, with its values by name (`val/accuracy`)."""

    def on_epoch(self, trainer: Training, values: dict[str, float]) -> None:
        """Act after every epoch, with the training values by name."""

    def on_save(self, trainer: Training, path: Path) -> None:
        """Act after every checkpoint, where it is written; with `checkpoint.asynchronous` the file is there later."""

    def on_fit_end(self, trainer: Training) -> None:
        """Act after the last step."""

    def on_test(self, trainer: Training, values: dict[str, float]) -> None:
        """Act after the final test, with its values by name (`test/accuracy`)."""

    def on_exception(self, trainer: Training, error: BaseException) -> None:
        """Act where an error ends the run, before `on_end`."""

    def on_end(self, trainer: Training, status: str) -> None:
        """Act last of all, once training has begun: `finished`, `paused`, `interrupted` or `failed`."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors for a checkpoint to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what a checkpoint kept."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def overriding(callbacks: Iterable[Any], hook: str) -> list[Any]:
    """Return the callbacks that do something in a hook."""
    plain = getattr(Callback, hook)
    return [callback for callback in callbacks if getattr(type(callback), hook, plain) is not plain]


class EarlyStopping(Callback):
    """Ends training after `patience` validations without an improvement, or once the value has reached `target`.

    Args:
        monitor: Name of the value to watch, such as `val/loss`.
        mode: Whether `min` or `max` is better.
        patience: Validations without improvement before training ends, at least 1; None never ends it for that.
        min_delta: Smallest change that counts, in units of the value.
        target: Value that is good enough; None for none.
        from_epoch: First epoch that counts, from 1.
    """

    def __init__(
        self,
        monitor: str,
        mode: str,
        *,
        patience: int | None = None,
        min_delta: float = 0.0,
        target: float | None = None,
        from_epoch: int = 1,
    ) -> None:
        self.monitor, self.mode, self.patience, self.min_delta = monitor, mode, patience, min_delta
        self.target, self.from_epoch = target, from_epoch
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
        if trainer.state.epoch + bool(trainer.state.samples_done) < self.from_epoch:
            return
        if self.target is not None and (value == self.target or improves(value, self.target, mode=self.mode)):
            trainer.stop(f"early stopping: {self.monitor} is {value:.6g}, and the target {self.target:g}")
        if improves(value, self.best, mode=self.mode, min_delta=self.min_delta):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.patience is not None and self.waited >= self.patience:
            trainer.stop(f"early stopping: {self.monitor} has not improved {counted(self.waited, 'time')} in a row")

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the validations waited."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where the checkpoint stood."""
        self.best, self.waited = state["best"], state["waited"]
