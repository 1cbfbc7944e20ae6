"""Which state an error leaves behind: that of the last whole optimizer step can be saved, a half-made one cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lightkit.common.errors import NOT_FINITE
from lightkit.common.modules import put_back
from lightkit.device.ranks import is_lost
from lightkit.trainer.callbacks import overriding
from lightkit.trainer.guard import KEPT, copied
from lightkit.trainer.learner import Learner

WHOLE, COMPUTING, UPDATING, AFTER, CLOSING = "whole", "computing", "updating", "after a step", "closing"
_MOST_VALUES = 1_000_000
"""A callback with more values than this is not copied at each step."""


class Rescue:
    """Follows a run through its steps, and puts back what the one under way has changed beside the weights.

    Args:
        learner: What is trained.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner, self.phase = learner, WHOLE
        own = learner.callbacks.items()
        self._on_step = [name for name, callback in own if overriding([callback], "on_step")]
        within = ("on_batch", "on_before_update")
        self._on_batch = [name for name, callback in own if any(overriding([callback], hook) for hook in within)]
        self._is_usual, self._is_listed = type(learner.model).parameters is nn.Module.parameters, False
        self._modules: list[nn.Module] = []
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self.computes_only = False
        """Whether an error leaves something whole only while batches are computed."""
        self._version = self._logged = self._rows = 0
        self._last: dict[str, float] = {}
        self._before: dict[str, Any] = {}
        self._callbacks: dict[str, Any] | None = None

    def begin_step(self) -> None:
        """Take note that the batches of a step are computed next: they may change buffers, such as running averages."""
        if self._is_usual and not self._is_listed:
            self._modules, self._is_listed = [*self._learner.model.modules()], True
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in self._held("_buffers")]
        self._callbacks = self._copies(self._on_batch)
        self._version, self.phase = self._versions(), COMPUTING

    def begin_update(self) -> None:
        """Take note that the weights are updated next: what an error leaves then is nothing whole."""
        self.phase = UPDATING

    def end_update(self) -> None:
        """Take note that a step was taken; what is due after it comes next, callbacks and logging."""
        self.phase = AFTER
        if self.computes_only:
            return
        state = self._learner.state
        self._logged, self._rows, self._last = len(state.logged), state.rows, dict(state.last)
        self._callbacks, self._version = self._copies(self._on_step), self._versions()

    def begin_closing(self, *, epoch: bool = False) -> None:
        """Take note that a validation comes next, or the end of an epoch, which forgets what the metrics counted."""
        self.phase, learner, self._is_listed = CLOSING, self._learner, False  # a callback may add modules
        if self.computes_only:
            return
        self._before = {"state": learner.state.state_dict(), "scheduler": copied(learner.scheduler.state_dict())}
        self._before |= {"metrics": learner.metrics["train"].state_dict()} if epoch else {}
        self._callbacks = self._copies([name for name in learner.callbacks if name != KEPT])
        self._version = self._versions()

    def end(self) -> None:
        """Take note that all that was due is done."""
        self.phase = WHOLE

    def restore(self, owed: Mapping[str, Any]) -> bool:
        """Put the state of the last whole step back.

        Args:
            owed: What the log of this step will be made of, where it is still to come.

        Returns:
            Whether that could be done; otherwise the state is of no use.
        """
        if self._is_spoilt():
            return False
        if self.phase == COMPUTING:
            put_back(self._buffers)
        elif self.phase == AFTER:
            state = self._learner.state
            state.logged.cut(self._logged)
            state.rows, state.last, state.owed = self._rows, self._last, dict(owed)
        elif self.phase == CLOSING:
            self._reopen()
        return True

    def _is_spoilt(self) -> bool:
        """Tell whether what is kept does not make the state whole again."""
        if self.phase == WHOLE:
            return False
        after = self.phase in (AFTER, CLOSING)
        if self.phase == UPDATING or self._versions() != self._version or (self.computes_only and after):
            return True
        return not self._callbacks_restored()

    def _callbacks_restored(self) -> bool:
        """Put the states of callbacks back; returns whether they were kept."""
        for name, values in (self._callbacks or {}).items():
            if values:
                self._learner.callbacks[name].load_state_dict(values)
        return self._callbacks is not None

    def _reopen(self) -> None:
        """Put back what the end of an epoch and a validation change."""
        learner, before = self._learner, self._before
        learner.state.load_state_dict(before["state"])
        learner.scheduler.load_state_dict(before["scheduler"])
        if "metrics" in before:
            learner.metrics["train"].load_state_dict(before["metrics"])

    def _versions(self) -> int:
        """Count how often the weights were changed in place."""
        return sum([parameter._version for parameter in self._held("_parameters")])

    def _held(self, kind: str) -> list[Tensor]:
        """Return what the modules hold: `named_parameters` and `named_buffers` take as long as a small layer."""
        if not self._modules:
            model = self._learner.model
            return [*(model.parameters() if kind == "_parameters" else model.buffers())]
        return [held for module in self._modules for held in module.__dict__[kind].values() if held is not None]

    def _copies(self, names: list[str]) -> dict[str, Any] | None:
        """Copy the states of callbacks; None where that would be too much for each step."""
        found = {name: self._learner.callbacks[name].state_dict() for name in names}
        return found and (copied(found) if sum(map(_size, found.values())) <= _MOST_VALUES else None)


def is_beyond_rescue(error: BaseException) -> bool:
    """Tell whether an error says that the state is spoilt, or that processes which share it are gone."""
    return getattr(error, "exit_code", None) == NOT_FINITE or is_lost(error)


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, (list, tuple)) else 1
