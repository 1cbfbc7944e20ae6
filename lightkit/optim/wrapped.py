"""PyTorch's own schedulers behind lightkit's interface, and what any schedule will do to an optimizer, step by step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
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


_STEPPING = ("step", "epoch_end", "refresh")
_CYCLED = frozenset({"momentum", "betas"})
"""What `OneCycleLR` and `CyclicLR` change besides the rate."""


def rates(scheduler: Schedule, steps: Sequence[int]) -> list[list[float]] | None:
    """Compute the rate of every group in some optimizer steps, without changing scheduler or optimizer.

    Steps are counted from 0: the rates of step n are those with which it is taken. For one of PyTorch's schedulers a
    twin goes through the steps, those still to come from where the scheduler stands.

    Args:
        scheduler: A schedule at any step of its run.
        steps: The steps, in any order.

    Returns:
        For each step the rates in the order of the optimizer's groups, or None where they depend on values that are not
        known before: after validations (`Plateau`), or in a schedule that overrides more than `factor` and `decay`.
    """
    if isinstance(scheduler, Torch):
        return None if scheduler.monitored else _simulated(scheduler, steps)
    if scheduler.monitored or any(getattr(type(scheduler), name) is not getattr(Schedule, name) for name in _STEPPING):
        return None
    groups = scheduler.optimizer.param_groups
    return [[_as_held(rate, group["lr"]) for rate, group in zip(scheduler.rates(step), groups)] for step in steps]


def due(scheduler: Schedule) -> list[float] | None:
    """Return the rates that a schedule has set for the step to come; None if only its optimizer's groups tell."""
    groups = scheduler.optimizer.param_groups
    if isinstance(scheduler, Torch):
        # Rates in tensors are not part of a saved state, so after a resume nobody knows what was set.
        in_tensors = any(isinstance(group["lr"], torch.Tensor) for group in groups)
        known = type(scheduler.inner).step.__module__.startswith("torch.") and not in_tensors
        return [float(rate) for rate in scheduler.inner.get_last_lr()] if known else None
    if _sets_more(scheduler):
        return None
    return [_as_held(rate, group["lr"]) for rate, group in zip(scheduler.rates(scheduler.count), groups)]


def alters(scheduler: Schedule) -> frozenset[str] | None:
    """List the options of groups that a schedule may change besides the rates; None where that could be any."""
    if isinstance(scheduler, Torch):
        return _CYCLED if type(scheduler.inner).__module__.startswith("torch.") else None
    return None if _sets_more(scheduler) else frozenset()


def rate_scale(scheduler: Schedule) -> float | None:
    """Return the factor on the rates of a preview, which is made without; None where one does not say it.

    Of PyTorch's schedulers some add floors and steps of a fixed size.
    """
    scale = scheduler.rate_scale
    return None if isinstance(scheduler, Torch) and scale != 1.0 else scale


def _sets_more(scheduler: Schedule) -> bool:
    """Tell whether a schedule of someone's own writes into the groups by itself."""
    return any(getattr(type(scheduler), name) is not getattr(Schedule, name) for name in ("step", "refresh", "_apply"))


def _as_held(rate: float, held: Any) -> float:
    """Round a rate to the type of the tensor that a group has it in, if it does."""
    return float(torch.tensor(rate, dtype=held.dtype)) if isinstance(held, torch.Tensor) else rate


def _simulated(live: Torch, steps: Sequence[int]) -> list[list[float]]:
    """Step twins of one of PyTorch's schedules through past and future steps."""
    past, future = {step for step in steps if step < live.count}, {step for step in steps if step >= live.count}
    found = _walked(_twin(live), past) if past else {}
    if future:
        twin = _twin(live)
        for group, source in zip(twin.optimizer.param_groups, live.optimizer.param_groups):
            group.update(_settings(source))
        twin.load_state_dict(copy.deepcopy(live.state_dict()))  # it goes on from where the schedule stands
        found |= _walked(twin, future)
    return [found[step] for step in steps]


def _walked(twin: Torch, steps: set[int]) -> dict[int, list[float]]:
    """Step a twin, which lies before all these steps, through them and collect the rates."""
    found: dict[int, list[float]] = {}
    while True:
        if twin.count in steps:
            found[twin.count] = [float(group["lr"]) for group in twin.optimizer.param_groups]
        if twin.count >= max(steps):
            return found
        twin.step()


def _twin(live: Torch) -> Torch:
    """Make the same schedule anew at its first step, over an optimizer with nothing to train."""
    optimizer = _IdleOptimizer(live.optimizer)
    for group, rate in zip(optimizer.param_groups, live.own_rates):
        group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], torch.Tensor) else rate
    return Torch(
        optimizer,
        total_steps=live.total_steps,
        steps_per_epoch=live.steps_per_epoch,
        scheduler=live.source,
        interval=live.interval,
    )


class _IdleOptimizer(Optimizer):
    """An optimizer with the groups of another, one number in each, that takes no steps."""

    def __init__(self, other: Optimizer) -> None:
        groups = [{**_settings(group), "params": [torch.zeros(1)]} for group in other.param_groups]
        super().__init__(groups, copy.copy(other.defaults))
        # PyTorch's schedulers warn without it. A call of `step` would set it too, but run hooks meant for real steps.
        self._opt_called = True


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Copy the settings of a group."""
    return {key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")}
