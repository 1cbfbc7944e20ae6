"""What a schedule does to an optimizer: the rates it will set, step by step, and those it has set now."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from lightkit.optim.schedulers import Schedule
from lightkit.optim.wrapped import Torch

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
