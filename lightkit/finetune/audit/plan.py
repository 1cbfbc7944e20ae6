"""What a run is going to train, at which rate and when, and whether the live objects agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any

from torch import nn
from torch.optim import Optimizer

import lightkit.finetune.audit.wording as wording
from lightkit.finetune.audit.folding import folded
from lightkit.finetune.audit.moments import Rates
from lightkit.finetune.audit.moments import stops as stopped
from lightkit.finetune.audit.parts import Part, split
from lightkit.finetune.audit.state_sizes import state_sizes
from lightkit.finetune.phases import Phase


@dataclass(frozen=True)
class GroupRow:
    """One group of the optimizer, or what has none, in one phase."""

    group: str
    """Name of the group; `never trained` for what has none."""
    names: tuple[str, ...] = field(repr=False)
    """Names of its parameters."""
    parameters: int
    """Number of elements in them."""
    frozen: bool
    """Whether they rest."""
    rate: float | None
    """The group's own learning rate, before any schedule; None without a group."""
    rates: tuple[float, ...] | None
    """Learning rate at each of the phase's `steps`; None where there is none, or it depends on values not known yet."""
    weight_decay: float | None
    """Weight decay; None without a group."""
    norm: str | None
    """Mode of its norm layers with running statistics: any of `train`, `stats` (statistics go on, weights rest) and
    `frozen`, joined by `+`; empty where there are none, None where it is not known."""
    rules: tuple[str, ...]
    """Configuration keys that put the parameters here."""
    state_bytes: int | None = None
    """What the optimizer keeps for them once they train; None where it is not known."""
    stops: int | None = None
    """The first of the phase's `steps` from which on the schedule keeps the rate at 0 until it ends; None for none."""

    @property
    def tensors(self) -> int:
        """Number of parameters as tensors."""
        return len(self.names)


@dataclass(frozen=True)
class PhaseTable:
    """The rows of one phase."""

    phase: str
    """When it begins: `epoch 3`."""
    steps: tuple[int, ...]
    """The optimizer steps whose rates are known: the first of the phase, then the first of each epoch in it."""
    rows: tuple[GroupRow, ...]
    """The groups in the order of the optimizer, then what has none."""
    state_bytes: int | None = None
    """What the optimizer keeps from this phase on, for everything that has trained until then."""

    @property
    def trainable(self) -> int:
        """Elements that train."""
        return sum(row.parameters for row in self.rows if not row.frozen)

    @property
    def parameters(self) -> int:
        """All elements."""
        return sum(row.parameters for row in self.rows)

    def tells(self, step: int) -> bool:
        """Whether the rates of an optimizer step are known."""
        return step in self.steps and not any(row.rates is None for row in self.rows if row.rate is not None)

    def differences(self, live: PhaseTable, *, rate_scale: float | None = 1.0, decay: bool = True) -> list[str]:
        """Where live objects are not as planned here; see `live_table`.

        Args:
            live: The table of the live objects.
            rate_scale: What all rates are multiplied with besides the schedule; None leaves them out.
            decay: Compare weight decays.

        Returns:
            One line each, with the names.
        """
        planned, found = ({row.group: row for row in table.rows} for table in (self, live))
        lines = [f"group {name} is not in the plan" for name in found if name not in planned]
        lines += [f"group {name} of the plan is not there" for name in planned if name not in found]
        for name in planned:
            if name in found:
                lines += [f"group {name}: {line}" for line in _differing(planned[name], found[name], decay)]
                lines += [f"group {name}: {line}" for line in self._rates(planned[name], found[name], live, rate_scale)]
        return lines

    def _rates(self, planned: GroupRow, found: GroupRow, live: PhaseTable, scale: float | None) -> list[str]:
        if planned.rates is None or found.rates is None or scale is None:
            return []
        expected = {step: rate * scale for step, rate in zip(self.steps, planned.rates)}
        return [
            f"learning rate {wording.rate(rate)} at step {step}, planned {wording.rate(expected[step])}"
            for step, rate in zip(live.steps, found.rates)
            if step in expected and not math.isclose(rate, expected[step], rel_tol=1e-6)
        ]


@dataclass(frozen=True)
class Plan:
    """What trains in a run, phase by phase."""

    phases: tuple[PhaseTable, ...]
    """In their order."""
    optimizer: str = ""
    """Class of the optimizer."""

    def rows(self) -> list[tuple[PhaseTable, GroupRow]]:
        """Every row with its phase."""
        return [(table, row) for table in self.phases for row in table.rows]

    def find(self, phase: str) -> PhaseTable | None:
        """The table of a phase by its name."""
        return next((table for table in self.phases if table.phase == phase), None)

    def table(self, *, long: bool = False) -> tuple[list[str], list[list[str]]]:
        """Column heads and cells for people; see `folded`."""
        return ["phase", *wording.COLUMNS], folded(self.phases, long=long)

    def lines(self) -> list[str]:
        """One line a phase: what share of the network trains, and the memory of the optimizer."""
        return [wording.share(table, self.optimizer) for table in self.phases]

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"optimizer": self.optimizer, "phases": [wording.plain(table) for table in self.phases]}

    def differences(self, live: Plan, *, rate_scale: float = 1.0) -> list[str]:
        """Where the tables of live objects, taken at any steps, are not as planned; one line each."""
        lines = []
        for table in live.phases:
            planned = self.find(table.phase)
            found = ["is not in the plan"] if planned is None else planned.differences(table, rate_scale=rate_scale)
            lines += [f"{table.phase}: {line}" for line in found]
        return lines


def plain_phases(model: nn.Module) -> tuple[Phase, ...]:
    """The only phase of plain training: all that needs a gradient trains from first to last."""
    return (Phase(frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad), epoch=0),)


def phase_steps(phases: Sequence[Phase], *, steps_per_epoch: int, total_steps: int) -> list[tuple[int, ...]]:
    """For each phase the optimizer steps whose rates a plan shows: its first, then the first of each epoch in it."""
    begins = [phase.first_step(steps_per_epoch) for phase in phases]
    found = []
    for begin, end in zip(begins, [*begins[1:], total_steps]):
        epochs = range((begin // steps_per_epoch + 1) * steps_per_epoch, end, steps_per_epoch)
        found.append((begin, *epochs))
    return found


def build_plan(
    model: nn.Module,
    optimizer: Optimizer,
    phases: Sequence[Phase],
    *,
    steps: Sequence[tuple[int, ...]],
    rates: Rates | None,
    resting_rules: tuple[str, ...] = (),
    take_step: Callable[[Optimizer], Any] = methodcaller("step"),
) -> Plan:
    """The plan of a run, before its first step.

    Args:
        model: The network without wrappers.
        optimizer: Over all its groups.
        phases: What trains when.
        steps: From `phase_steps`.
        rates: Optimizer step → rate of each group, for all of `steps` and perhaps for more, which tell whether a rate
            is 0 between these; None where they are not known before.
        resting_rules: Configuration keys by which some parameters never train.
        take_step: Lets an optimizer take a step, to measure the memory of its state.
    """
    parameters = dict(model.named_parameters())
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    sizes = state_sizes(optimizer, {n: p for n, p in parameters.items() if id(p) in held}, step=take_step)
    known, tables = dict.fromkeys(parameters, 0) | sizes if sizes is not None else None, []
    trained: set[str] = set()
    ends = [moments[0] for moments in steps[1:]] + [math.inf]
    for phase, moments, end in zip(phases, steps, ends):
        trained |= phase.trainable & set(parameters)
        rows = _rows(
            model,
            split(model, optimizer.param_groups, phase.trainable),
            rates=None if rates is None else [rates[step] for step in moments],
            resting=phase.still,
            sizes=known,
            resting_rules=resting_rules,
            stops=stopped(rates or {}, moments, end),
        )
        state = None if known is None else sum(known[name] for name in trained)
        tables.append(PhaseTable(phase.name, moments, rows, state))
    return Plan(tuple(tables), type(optimizer).__name__)


def live_table(model: nn.Module, optimizer: Optimizer, *, phase: str, step: int) -> PhaseTable:
    """The table of a phase from the live objects: what needs a gradient, the rates of this moment, the modes.

    Args:
        model: The network without wrappers; in eval mode nothing is said of its norm layers.
        optimizer: Its optimizer.
        phase: Name of the phase.
        step: The optimizer step that is about to be taken.
    """
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    resting = {path for path, module in model.named_modules() if not module.training} if model.training else None
    rows = _rows(
        model,
        split(model, optimizer.param_groups, trainable),
        rates=[[float(group["lr"]) for group in optimizer.param_groups]],
        resting=resting,
        sizes=None,
    )
    return PhaseTable(phase, (step,), rows)


def own_rate(group: Mapping[str, Any]) -> float:
    """A group's own learning rate, before any schedule."""
    return float(group.get("initial_lr", group["lr"]))


def _rows(
    model: nn.Module,
    parts: Iterable[Part],
    *,
    rates: Sequence[Sequence[float]] | None,
    resting: Collection[str] | None,
    sizes: Mapping[str, int] | None,
    resting_rules: tuple[str, ...] = (),
    stops: Mapping[int, int] | None = None,
) -> tuple[GroupRow, ...]:
    elements = {name: parameter.numel() for name, parameter in model.named_parameters()}
    rows = []
    for part in parts:
        decay, index = part.group.get("weight_decay"), part.index
        state = None if sizes is None else sum(sizes[name] for name in part.names)
        rows.append(
            GroupRow(
                group=part.name,
                names=part.names,
                parameters=sum(elements[name] for name in part.names),
                frozen=not part.trains,
                rate=None if index is None else own_rate(part.group),
                rates=None if index is None or rates is None else tuple(float(now[index]) for now in rates),
                weight_decay=None if decay is None else float(decay),
                norm=None if resting is None else _norm_mode(model, part, resting),
                rules=resting_rules if index is None else tuple(part.group.get("rules", ())),
                state_bytes=state if part.trains else None,
                stops=(stops or {}).get(index) if part.trains and index is not None else None,
            )
        )
    return tuple(rows)


def _norm_mode(model: nn.Module, part: Part, resting: Collection[str]) -> str:
    modes = set()
    for path in part.norms:
        learns = part.trains or not any(True for _ in model.get_submodule(path).parameters())
        modes.add("frozen" if path in resting else "train" if learns else "stats")
    return "+".join(sorted(modes))


def _differing(planned: GroupRow, found: GroupRow, decay: bool) -> list[str]:
    lines = []
    gone, new = ([n for n in a.names if n not in set(b.names)] for a, b in ((planned, found), (found, planned)))
    if gone:
        lines.append(f"without {wording.some(gone)}")
    if new:
        lines.append(f"also with {wording.some(new)}")
    compared = ["frozen", "parameters", "rate", *(["weight_decay"] if decay else [])]
    compared += [] if planned.rate is None else ["rules"]
    for name in compared:
        expected, value = getattr(planned, name), getattr(found, name)
        if expected != value:
            lines.append(f"{name.replace('_', ' ')} {value}, planned {expected}")
    if found.norm is not None and planned.norm != found.norm:
        lines.append(f"norm layers {found.norm or 'none'}, planned {planned.norm or 'none'}")
    return lines
