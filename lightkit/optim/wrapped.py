"""PyTorch's own schedulers behind the interface of lightkit's."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightkit.common.errors import UserError
from lightkit.common.text import counted
from lightkit.optim.schedulers import Interval, Schedule, check_interval

_PLAIN = (bool, int, float, str, type(None))
_LEFT_OUT = object()


class Torch(Schedule):
    """Any `torch.optim.lr_scheduler` scheduler, stepped per optimizer step or per epoch.

    These carry the rate itself as their state, so a changed `optim.lr` has no effect on a resumed run, and absolute
    floors such as `eta_min` change the ratio of groups; lightkit's own schedules have neither trait.

    Args:
        optimizer: See `Schedule`.
        total_steps: Optimizer steps of the whole run; handed on to schedulers that have an argument `total_steps`.
        steps_per_epoch: Optimizer steps of an epoch.
        scheduler: Makes the scheduler from the optimizer: in YAML a `_target_` with `_partial_: true`.
        interval: What the scheduler counts, `step` or `epoch`.

    Raises:
        UserError: The scheduler cannot be made, or is none, or a group has a warm-up of its own.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        total_steps: int,
        steps_per_epoch: int,
        scheduler: Callable[..., Any],
        interval: Interval = "step",
    ) -> None:
        for group in optimizer.param_groups:
            if group.get("warmup_steps"):
                raise UserError(
                    "PyTorch's schedulers have no warm-up for single groups",
                    key=group.get("warmup_key"),
                    received=group["warmup_steps"],
                    fix="one of lightkit's schedulers, such as scheduler=cosine, or a rule without warmup_steps",
                )
        super().__init__(optimizer, total_steps=total_steps, steps_per_epoch=steps_per_epoch)
        self.interval, self.source = check_interval(interval), scheduler
        try:
            accepted = inspect.signature(scheduler).parameters
            wants = "total_steps" in accepted and accepted["total_steps"].default in (None, inspect.Parameter.empty)
            for group in optimizer.param_groups:
                group.pop("initial_lr", None)  # some set the rate to begin with themselves, as CyclicLR its base_lr
            made = _with_parts(scheduler, optimizer)(optimizer, **({"total_steps": total_steps} if wants else {}))
        except (TypeError, ValueError) as error:
            raise UserError(f"the scheduler cannot be made: {error}", argument="scheduler") from error
        if not isinstance(made, LRScheduler):
            expected = "a torch.optim.lr_scheduler class with `_partial_: true`"
            raise UserError("not a scheduler", argument="scheduler", expected=expected, received=type(made).__name__)
        self.inner = made
        self._check_length()
        self.monitored = isinstance(self.inner, ReduceLROnPlateau)

    def step(self) -> None:
        """Move to the next step; call it after every optimizer step."""
        self.count += 1
        if not self.monitored and (self.interval == "step" or self.count % self.steps_per_epoch == 0):
            self.inner.step()

    def epoch_end(self, value: float | None) -> None:
        """Hand a validated value to `ReduceLROnPlateau`; the others don't look at it.

        Raises:
            UserError: There is no value to watch.
        """
        if not isinstance(self.inner, ReduceLROnPlateau):
            return
        if value is None:
            raise UserError("ReduceLROnPlateau needs a validated value", key="scheduler", fix="set metrics.monitor")
        self.inner.step(value)

    def rescale(self, scale: float) -> None:
        """Multiply all rates with `scale` from now on: those PyTorch's scheduler starts from, and today's."""
        change, self.rate_scale = scale / self.rate_scale, scale
        for group in self.optimizer.param_groups:
            group["lr"] *= change
        self.inner.base_lrs = [rate * change for rate in getattr(self.inner, "base_lrs", [])]
        self.inner._last_lr = [rate * change for rate in getattr(self.inner, "_last_lr", [])]

    def state_dict(self) -> dict[str, Any]:
        """Return where the scheduler stands; what is not of plain types comes from its constructor again."""
        return {"count": self.count, "rate_scale": self.rate_scale, "inner": _plain(self.inner.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; load the optimizer, which holds the rates, as well."""
        self.count, self.rate_scale = state["count"], state.get("rate_scale", 1.0)
        self.keep_settings()
        self.inner.load_state_dict(copy.deepcopy(state["inner"]))  # CyclicLR takes it apart
        self._check_length()

    def _check_length(self) -> None:
        """Refuse a scheduler that would fail in the middle of the run, as it has a length of its own."""
        own = getattr(self.inner, "total_steps", None)
        if self.interval == "step" and isinstance(own, int) and own < self.total_steps:
            raise UserError(
                f"{type(self.inner).__name__} ends after {counted(own, 'step')}, and the run has {self.total_steps}",
                argument="scheduler",
                fix="one of lightkit's schedulers, such as scheduler=one_cycle, which can be made longer",
            )


def _with_parts(scheduler: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
    """Make the schedulers that one is made of, as SequentialLR and ChainedScheduler are."""
    parts = getattr(scheduler, "keywords", {}).get("schedulers")
    if not isinstance(parts, (list, tuple)):
        return scheduler
    return partial(scheduler, schedulers=[part(optimizer) if callable(part) else part for part in parts])


def _plain(value: Any) -> Any:
    """Leave out of a state what is not of plain types: keys of a dict, also of schedulers inside, or a whole list."""
    if type(value) is dict:
        found = {key: _plain(element) for key, element in value.items()}
        return {key: element for key, element in found.items() if element is not _LEFT_OUT}
    if type(value) in (list, tuple):
        elements = [_plain(element) for element in value]
        return _LEFT_OUT if any(element is _LEFT_OUT for element in elements) else type(value)(elements)
    return value if type(value) in _PLAIN else _LEFT_OUT
