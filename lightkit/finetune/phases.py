"""What trains when: a run as a row of phases, each of which is a function of the configuration alone.

A phase says which parameters train and which modules are held in eval mode. The phase of a step follows from its epoch
and number, so nothing of it has to be saved for a run to be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.modules import has_statistics, inside, parent_of
from lightkit.finetune.names import Names

Moment = tuple[dict[str, int], frozenset[str]]
"""When a phase begins (`{"epoch": 3}`), and the names of what trains in it."""


@dataclass(frozen=True)
class Phase:
    """A part of a run in which the same parameters train."""

    trainable: frozenset[str]
    """Names of the parameters that train, as the network has them now."""
    epoch: int | None = None
    """It starts with this epoch, counted from 0; either this or `step` is set."""
    step: int | None = None
    """It starts before this optimizer step, counted from 0."""
    still: frozenset[str] = field(default=frozenset(), repr=False)
    """Paths of the norm layers whose statistics rest: they are held in eval mode."""
    quiet: frozenset[str] = field(default=frozenset(), repr=False)
    """Paths of other modules held in eval mode: dropout of frozen parts, and what has numbers of its own there."""

    @property
    def name(self) -> str:
        """When it starts: `epoch 3`."""
        return f"epoch {self.epoch}" if self.step is None else f"step {self.step}"

    def reached(self, epoch: int, step: int) -> bool:
        """Whether it has begun before this optimizer step of this epoch."""
        return epoch >= self.epoch if self.epoch is not None else step >= (self.step or 0)

    def first_step(self, steps_per_epoch: int) -> int:
        """The optimizer step it starts with in an uninterrupted run."""
        return self.epoch * steps_per_epoch if self.epoch is not None else self.step or 0


@dataclass(frozen=True)
class Change:
    """Parameters that start or stop training at a moment of the run."""

    key: str
    """Configuration key it comes from."""
    unfreeze: tuple[str, ...] = ()
    """Names of parameters that train from here on."""
    freeze: tuple[str, ...] = ()
    """Names of parameters that rest from here on."""
    epoch: int | None = None
    """Start of this epoch, or ..."""
    step: int | None = None
    """... before this optimizer step."""


def scheduled(
    entries: Sequence[Mapping[str, Any]], names: Names, *, total_steps: int, key: str = "finetune.schedule"
) -> list[Change]:
    """The changes that `finetune.schedule` asks for.

    Args:
        entries: What happens when.
        names: The names of the network.
        total_steps: Optimizer steps of the run.
        key: Configuration key, for errors.

    Raises:
        UserError: A pattern matches nothing, or one entry freezes and unfreezes a parameter.
    """
    changes = []
    for index, entry in enumerate(entries):
        own = f"{key}[{index}]"
        given = {what: tuple(entry.get(what) or ()) for what in ("unfreeze", "freeze")}
        found = {what: tuple(names.parameters(given[what], key=f"{own}.{what}")) for what in given}
        both = set(found["unfreeze"]) & set(found["freeze"])
        if both:
            raise UserError("frozen and unfrozen at once", key=own, received=", ".join(sorted(both)[:5]))
        step, share = entry.get("step"), entry.get("share")
        if share is not None:
            step = min(round(share * total_steps), total_steps - 1)
        changes.append(Change(own, **found, epoch=entry.get("epoch"), step=step))
    return changes


def gradual(
    options: Mapping[str, Any],
    frozen: Collection[str],
    depths: Mapping[str, int],
    *,
    steps_per_epoch: int,
    total_steps: int,
    key: str = "finetune.gradual",
) -> list[Change]:
    """Gradual unfreezing from the head down (Howard and Ruder 2018, https://arxiv.org/abs/1801.06146).

    Args:
        options: `every_epochs`, `every_steps` or `share`, `layers` and `first`.
        frozen: Names of the parameters that are frozen at the start.
        depths: Layer of each parameter, 0 at the input.
        steps_per_epoch: Optimizer steps of an epoch.
        total_steps: Optimizer steps of the run.
        key: Configuration key, for errors.

    Returns:
        The changes; none where nothing of `options` says when.

    Raises:
        UserError: There is nothing to unfreeze.
    """
    every = {unit: options.get(unit) for unit in ("every_epochs", "every_steps", "share") if options.get(unit)}
    if not every:
        return []
    layers = sorted({depths[name] for name in frozen}, reverse=True)
    if not layers:
        raise UserError("nothing is frozen that could be unfrozen", key=key, fix='finetune.freeze=["@body"]')
    size = options.get("layers") or 1
    stages = [set(layers[start : start + size]) for start in range(0, len(layers), size)]
    moments = _moments(every, options.get("first"), len(stages), total_steps)
    return [
        Change(
            key,
            unfreeze=tuple(name for name in frozen if depths[name] in stage),
            epoch=moment.get("epoch"),
            step=moment.get("step"),
        )
        for stage, moment in zip(stages, moments)
    ]


def _moments(every: Mapping[str, Any], first: int | None, stages: int, total_steps: int) -> list[dict[str, int]]:
    if "share" in every:
        last = max(1, math.floor(every["share"] * total_steps))
        return [{"step": max(1, round(last * (stage + 1) / stages))} for stage in range(stages)]
    unit, count = ("epoch", every["every_epochs"]) if "every_epochs" in every else ("step", every["every_steps"])
    start = count if first is None else first
    return [{unit: start + stage * count} for stage in range(stages)]


def make_phases(
    start: Collection[str], changes: Iterable[Change], *, steps_per_epoch: int, total_steps: int
) -> list[Moment]:
    """The moments at which something changes, with what trains from then on.

    Args:
        start: Names of the parameters that train from the start.
        changes: What changes later, in any order.
        steps_per_epoch: Optimizer steps of an epoch.
        total_steps: Optimizer steps of the run.

    Raises:
        UserError: A change comes after the end of the run, or leaves nothing to train.
    """
    ordered = sorted(changes, key=lambda change: _step_of(change, steps_per_epoch))
    found: list[Moment] = [({"epoch": 0}, frozenset(start))]
    for change in ordered:
        first = _step_of(change, steps_per_epoch)
        if first >= total_steps:
            raise _too_late(change, steps_per_epoch, total_steps)
        now = (found[-1][1] | set(change.unfreeze)) - set(change.freeze)
        moment = {"epoch": change.epoch} if change.epoch is not None else {"step": change.step or 0}
        if first == _moment_step(found[-1][0], steps_per_epoch):
            found[-1] = (found[-1][0], now)
        elif now != found[-1][1]:
            found.append((moment, now))
    for moment, trained in found:
        if not trained:
            when = " ".join(map(str, *moment.items()))
            fix = "name what is to train: finetune.train=[@head]"
            raise UserError(f"everything is frozen from {when} on", key="finetune.freeze", fix=fix)
    return found


def resting_norms(model: nn.Module, trained: Collection[str], names: Names, *, bn: str) -> frozenset[str]:
    """Paths of the norm layers with statistics in frozen parts, which are to be held in eval mode.

    One with a weight is frozen when its weight is, so that with BitFit (https://arxiv.org/abs/2106.10199) only biases
    change: statistics that go on would change more than these.

    Args:
        model: The network.
        trained: Names, as before anything was injected, of the parameters that train.
        names: The names of the network.
        bn: `frozen` holds them; with `stats` and `train` their statistics go on.
    """
    if bn != "frozen":
        return frozenset()
    resting = frozen_paths(model, trained, names)
    first = {alias: name for name, aliases in names.aliases.items() for alias in aliases}
    found = set()
    for path, module in model.named_modules():
        weight = first.get(f"{path}.weight".lstrip("."))
        if has_statistics(module) and (path in resting if weight is None else weight not in trained):
            found.add(path)
    return frozenset(found)


def frozen_paths(model: nn.Module, trained: Collection[str], names: Names) -> frozenset[str]:
    """Paths of the modules in frozen parts.

    A module is frozen when none of the parameters in it trains. One without parameters is what the part around it is.
    """
    alive = set()
    for first, aliases in names.aliases.items():
        if first in trained:
            alive |= {above for name in aliases for above in _above(name)}
    holding = {above for aliases in names.aliases.values() for name in aliases for above in _above(name)}
    found = set()
    for path, _ in model.named_modules():
        part = path
        while part and part not in holding:
            part = parent_of(part)
        if part not in alive and (part or not alive):
            found.add(path)
    return frozenset(found)


def norm_parameters(model: nn.Module, within: Collection[str], names: Names) -> set[str]:
    """Names, out of `within`, of the parameters of norm layers that keep statistics."""
    paths = [path for path, module in model.named_modules() if has_statistics(module)]
    return {
        name for name in within if any(inside(alias, path) for alias in names.aliases.get(name, ()) for path in paths)
    }


def _above(name: str) -> list[str]:
    parts = name.split(".")[:-1]
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def _step_of(change: Change, steps_per_epoch: int) -> int:
    return change.epoch * steps_per_epoch if change.epoch is not None else change.step or 0


def _moment_step(moment: Mapping[str, int], steps_per_epoch: int) -> int:
    return moment["epoch"] * steps_per_epoch if "epoch" in moment else moment["step"]


def _too_late(change: Change, steps_per_epoch: int, total_steps: int) -> UserError:
    epochs = total_steps / steps_per_epoch
    return UserError(
        "this comes after the end of the run",
        key=change.key,
        received=f"epoch {change.epoch}" if change.epoch is not None else f"step {change.step}",
        expected=f"before epoch {epochs:g} (step {total_steps}), counted from 0",
        fix="a longer run (trainer.epochs), or earlier; finetune.gradual.layers unfreezes several layers at once",
    )
