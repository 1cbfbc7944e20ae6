"""The steps of members that train at once with rates, weight decays and dropouts of their own."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.modules import mapped
from lightkit.common.stepping import take_step
from lightkit.trainer.learner import Learner

SETTINGS = ("params", "lr", "initial_lr", "weight_decay")
"""What the groups of optimizers that step at once may differ in."""


def own_settings(learner: Learner) -> list[dict[str, float]]:
    """Return rate and decay of each group of a member."""
    groups = [
        {**group, "initial_lr": float(group.get("initial_lr", group["lr"]))} for group in learner.optimizer.param_groups
    ]
    return [{key: group[key] for key in ("initial_lr", "weight_decay") if key in group} for group in groups]


def dropouts(model: nn.Module) -> list[float]:
    """Return which shares of its inputs each of its layers drops."""
    return [part.p for part in model.modules() if isinstance(part, nn.modules.dropout._DropoutNd)]


class UnlikeSteps:
    """Takes the steps of an optimizer over stacked weights whose members have rates and decays of their own.

    Neighbours with the same ones are stepped at once, by an optimizer over their rows of all tensors.

    Args:
        optimizer: Has the rates of the first member, which a schedule changes; the others follow.
        settings: Those of each member and group.
    """

    def __init__(self, optimizer: Optimizer, settings: Sequence[list[dict[str, float]]]) -> None:
        self.optimizer, self.settings, self._first = optimizer, list(settings), settings[0]
        self._parts: list[tuple[slice, Optimizer]] = []

    def keep(self, rows: Iterable[int]) -> None:
        """Leave out all members but these; the tensors may be others now."""
        self.settings, self._parts = [self.settings[row] for row in rows], []

    def rate(self, member: int, group: int, rate: float) -> float:
        """Return the rate of a member where that of the first would be `rate`."""
        own, first = (settings[group]["initial_lr"] for settings in (self.settings[member], self._first))
        return rate if own == first else own * (rate / first)

    def groups(self, member: int, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the settings of a member's groups, from those of the optimizer."""
        rates = [self.rate(member, at, group["lr"]) for at, group in enumerate(groups)]
        return [{**group, **own, "lr": rate} for group, own, rate in zip(groups, self.settings[member], rates)]

    def __call__(self) -> None:
        """Take a step of all, which is one step to the hooks of the optimizer: the watch counts by them."""
        wholes = _weights(self.optimizer)
        if not self._parts:
            runs = [[*members] for _, members in groupby(range(len(self.settings)), key=self.settings.__getitem__)]
            self._parts = [(rows, self._part(rows)) for rows in (slice(run[0], run[-1] + 1) for run in runs)]
        for before in self.optimizer._optimizer_step_pre_hooks.values():
            before(self.optimizer, (), {})
        for rows, part in self._parts:
            for own, group in zip(part.param_groups, self.groups(rows.start, self.optimizer.param_groups)):
                own["lr"] = group["lr"]
            for mine, whole in zip(_weights(part), wholes):
                mine.grad = None if whole.grad is None else whole.grad[rows]
            take_step(part)
        for after in self.optimizer._optimizer_step_post_hooks.values():
            after(self.optimizer, (), {})

    def _part(self, rows: slice) -> Optimizer:
        """Make the optimizer of some members, over their parts of the weights and of what is kept of these."""
        parts = {whole: nn.Parameter(whole.data[rows]) for whole in _weights(self.optimizer)}
        groups = self.groups(rows.start, self.optimizer.param_groups)
        made = made_alike(
            self.optimizer, [{**one, "params": [parts[whole] for whole in one["params"]]} for one in groups]
        )
        for whole, kept in self.optimizer.state.items():
            made.state[parts[whole]] = mapped(lambda each: (each[rows] if each.ndim else each).clone(), dict(kept))
        return made

    def collect(self) -> None:
        """Put what is kept of the weights of all together, for whoever reads it."""
        owns = zip(*([part.state[own] for own in _weights(part)] for _, part in self._parts))
        for whole, states in zip(_weights(self.optimizer), owns):
            self.optimizer.state[whole] = {
                name: torch.cat([state[name] for state in states])
                if isinstance(value, Tensor) and value.ndim
                else value
                for name, value in states[0].items()
            }


def _weights(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def made_alike(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Build an optimizer of the same class over other groups."""
    known = inspect.signature(type(optimizer)).parameters
    return type(optimizer)(groups, **{name: value for name, value in optimizer.defaults.items() if name in known})
