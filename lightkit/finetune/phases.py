"""What trains when: a run as a row of phases, each of which is a function of the configuration alone.

A phase says which parameters train and which modules are held in eval mode. The phase of a step follows from its epoch
and number, so nothing of it has to be saved for a run to be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames

PhaseStart = tuple[dict[str, int], frozenset[str]]
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
    frozen_norms: frozenset[str] = field(default=frozenset(), repr=False)
    """Paths of the norm layers whose statistics are frozen: they are held in eval mode."""
    eval_modules: frozenset[str] = field(default=frozenset(), repr=False)
    """Paths of other modules held in eval mode: dropout of frozen parts, and layers there that keep a state."""

    @property
    def name(self) -> str:
        """When it starts: `epoch 3`."""
        return f"epoch {self.epoch}" if self.step is None else f"step {self.step}"

    def has_begun(self, epoch: int, step: int) -> bool:
        """Tell whether it has begun before this optimizer step of this epoch."""
        return epoch >= self.epoch if self.epoch is not None else step >= (self.step or 0)

    def first_step(self, steps_per_epoch: int) -> int:
        """Return the optimizer step it starts with in an uninterrupted run."""
        return self.epoch * steps_per_epoch if self.epoch is not None else self.step or 0


@dataclass(frozen=True)
class Change:
    """Parameters that start or stop training at a moment of the run."""

    argument: str
    """The option it comes from: `schedule[0]`."""
    unfreeze: tuple[str, ...] = ()
    """Names of parameters that train from here on."""
    freeze: tuple[str, ...] = ()
    """Names of parameters that are frozen from here on."""
    epoch: int | None = None
    """Start of this epoch, or ..."""
    step: int | None = None
    """... before this optimizer step."""

    def first_step(self, steps_per_epoch: int) -> int:
        """Return the optimizer step it comes before in an uninterrupted run."""
        return self.epoch * steps_per_epoch if self.epoch is not None else self.step or 0


def scheduled_changes(schedule: Sequence[Mapping[str, Any]], names: NetworkNames, *, total_steps: int) -> list[Change]:
    """Return the changes that a schedule asks for.

    Args:
        schedule: What happens when.
        names: The names of the network.
        total_steps: Optimizer steps of the run.

    Raises:
        UserError: A pattern matches nothing, or one entry freezes and unfreezes a parameter.
    """
    changes = []
    for index, entry in enumerate(schedule):
        argument = f"schedule[{index}]"
        chosen = {
            what: tuple(names.find_parameters(entry.get(what) or (), argument=f"{argument}.{what}"))
            for what in ("unfreeze", "freeze")
        }
        both = set(chosen["unfreeze"]) & set(chosen["freeze"])
        if both:
            received = ", ".join(sorted(both)[:5])
            raise UserError("frozen and unfrozen at once", argument=argument, received=received, family="contradiction")
        step, share = entry.get("step"), entry.get("share")
        if share is not None:
            step = min(round(share * total_steps), total_steps - 1)
        changes.append(Change(argument, **chosen, epoch=entry.get("epoch"), step=step))
    return changes


def gradual_changes(
    options: Mapping[str, Any],
    frozen: Collection[str],
    depths: Mapping[str, int],
    *,
    total_steps: int,
) -> list[Change]:
    """Unfreeze gradually from the head down (Howard and Ruder 2018, https://arxiv.org/abs/1801.06146).

    Args:
        options: `every_epochs`, `every_steps` or `share`, `layers` and `first`.
        frozen: Names of the parameters that are frozen at the start.
        depths: Layer of each parameter, 0 at the input.
        total_steps: Optimizer steps of the run.

    Returns:
        The changes; none where nothing of `options` says when.

    Raises:
        UserError: There is nothing to unfreeze.
    """
    every: dict[str, Any] = {
        unit: options.get(unit) for unit in ("every_epochs", "every_steps", "share") if options.get(unit)
    }
    if not every:
        return []
    layers = sorted({depths[name] for name in frozen}, reverse=True)
    if not layers:
        fix = 'finetune.freeze=["@body"]'
        raise UserError("nothing is frozen that could be unfrozen", argument="gradual", fix=fix)
    size = options.get("layers") or 1
    stages = [set(layers[start : start + size]) for start in range(0, len(layers), size)]
    if "share" in every:
        last = max(1, math.floor(every["share"] * total_steps))
        moments = [{"step": max(1, round(last * (stage + 1) / len(stages)))} for stage in range(len(stages))]
    else:
        unit, count = ("epoch", every["every_epochs"]) if "every_epochs" in every else ("step", every["every_steps"])
        start = count if options.get("first") is None else options["first"]
        moments = [{unit: start + stage * count} for stage in range(len(stages))]
    return [
        Change(
            "gradual",
            unfreeze=tuple(name for name in frozen if depths[name] in stage),
            epoch=moment.get("epoch"),
            step=moment.get("step"),
        )
        for stage, moment in zip(stages, moments)
    ]


def phase_starts(
    trained: Collection[str], changes: Iterable[Change], *, steps_per_epoch: int, total_steps: int
) -> list[PhaseStart]:
    """Return the moments at which something changes, with what trains from then on.

    Args:
        trained: Names of the parameters that train from the start.
        changes: What changes later, in any order.
        steps_per_epoch: Optimizer steps of an epoch.
        total_steps: Optimizer steps of the run.

    Raises:
        UserError: A change comes after the end of the run, or leaves nothing to train.
    """
    starts: list[PhaseStart] = [({"epoch": 0}, frozenset(trained))]
    last_step = 0
    for change in sorted(changes, key=lambda change: change.first_step(steps_per_epoch)):
        first_step = change.first_step(steps_per_epoch)
        if first_step >= total_steps:
            layers = "finetune.gradual.layers unfreezes several layers at once"
            raise UserError(
                "this comes after the end of the run",
                argument=change.argument,
                received=f"epoch {change.epoch}" if change.epoch is not None else f"step {change.step}",
                expected=f"before epoch {total_steps / steps_per_epoch:g} (step {total_steps}), counted from 0",
                fix=f"a longer run (trainer.epochs), or earlier; {layers}",
            )
        moment, before = starts[-1]
        now = (before | set(change.unfreeze)) - set(change.freeze)
        if first_step == last_step:
            starts[-1] = (moment, now)
        elif now != before:
            starts.append(({"epoch": change.epoch} if change.epoch is not None else {"step": change.step or 0}, now))
            last_step = first_step
    for moment, now in starts:
        if not now:
            when = " ".join(map(str, *moment.items()))
            fix = "name what is to train: finetune.train=[@head]"
            raise UserError(f"everything is frozen from {when} on", argument="freeze", fix=fix)
    return starts
