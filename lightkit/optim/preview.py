"""What a schedule does to an optimizer: the rates it will set, step by step, and those it has set now."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from lightkit.optim.schedulers import Schedule
from lightkit.optim.wrapped import Torch

_STEPPING = ("step", "epoch_end", "refresh")
_CYCLED = frozenset({"momentum", "betas"})
"""What `OneCycleLR` and `CyclicLR` change besides the rate."""


def rates(scheduler: Schedule, steps: Sequence[int]) -> list[list[float]] | None:
    """The rate of every group in some optimizer steps; the scheduler and its optimizer stay as they are.

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
    """The rates that a schedule has set for the step to come; None where only the groups of its optimizer tell."""
    groups = scheduler.optimizer.param_groups
    if isinstance(scheduler, Torch):
        # Rates in tensors are not part of a saved state, so after a resume nobody knows what was set.
        told = type(scheduler.inner).step.__module__.startswith("torch.") and not any(map(_is_tensor, groups))
        return [float(rate) for rate in scheduler.inner.get_last_lr()] if told else None
    if _sets_more(scheduler):
        return None
    return [_as_held(rate, group["lr"]) for rate, group in zip(scheduler.rates(scheduler.count), groups)]


def alters(scheduler: Schedule) -> frozenset[str] | None:
    """Options of the groups that a schedule may change besides the rates; None where that could be any."""
    if isinstance(scheduler, Torch):
        return _CYCLED if type(scheduler.inner).__module__.startswith("torch.") else None
    return None if _sets_more(scheduler) else frozenset()


def rate_scale(scheduler: Schedule) -> float | None:
    """What the rates of a preview, without any such factor, are multiplied with; None where that does not say it.

    Of PyTorch's schedulers some add floors and steps of a fixed size.
    """
    scale = scheduler.rate_scale
    return None if isinstance(scheduler, Torch) and scale != 1.0 else scale


def _sets_more(scheduler: Schedule) -> bool:
    """Whether a schedule of someone's own writes into the groups by itself."""
    return any(getattr(type(scheduler), name) is not getattr(Schedule, name) for name in ("step", "refresh", "_apply"))


def _is_tensor(group: Mapping[str, Any]) -> bool:
    return isinstance(group["lr"], torch.Tensor)


def _as_held(rate: float, held: Any) -> float:
    """The rate as the group has it: one in a tensor is rounded to its type."""
    return float(torch.tensor(rate, dtype=held.dtype)) if isinstance(held, torch.Tensor) else rate


def _simulated(live: Torch, steps: Sequence[int]) -> list[list[float]]:
    past, future = {step for step in steps if step < live.count}, {step for step in steps if step >= live.count}
    found = _walked(_twin(live), past) if past else {}
    if future:
        found |= _walked(_standing_twin(live), future)
    return [found[step] for step in steps]


def _walked(twin: Torch, steps: set[int]) -> dict[int, list[float]]:
    """Rates in these steps, none of which lies behind the twin."""
    found: dict[int, list[float]] = {}
    while True:
        if twin.count in steps:
            found[twin.count] = [float(group["lr"]) for group in twin.optimizer.param_groups]
        if twin.count >= max(steps):
            return found
        twin.step()


def _twin(live: Torch) -> Torch:
    """The same schedule at its first step, over an optimizer with nothing to train."""
    optimizer = _Idle(live.optimizer)
    for group, rate in zip(optimizer.param_groups, live.own_rates):
        group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], torch.Tensor) else rate
    return Torch(
        optimizer,
        total_steps=live.total_steps,
        steps_per_epoch=live.steps_per_epoch,
        scheduler=live.source,
        interval=live.interval,
    )


def _standing_twin(live: Torch) -> Torch:
    """The same schedule where it stands."""
    twin = _twin(live)
    for group, source in zip(twin.optimizer.param_groups, live.optimizer.param_groups):
        group.update(_settings(source))
    twin.load_state_dict(copy.deepcopy(live.state_dict()))
    return twin


class _Idle(Optimizer):
    """An optimizer with the groups of another, one number in each, that takes no steps."""

    def __init__(self, other: Optimizer) -> None:
        groups = [{**_settings(group), "params": [torch.zeros(1)]} for group in other.param_groups]
        super().__init__(groups, copy.copy(other.defaults))
        # PyTorch's schedulers warn without it. A call of `step` would set it too, but run hooks meant for real steps.
        self._opt_called = True


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Copies of the settings of a group."""
    return {key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")}
