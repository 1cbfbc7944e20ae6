"""What a run is going to train, at which rate and when, and whether the live objects agree.

In the first phase every group has a row, in later ones those that change, and the rest few rows together. What a group
holds is said in few patterns: `layer3.*` for all that lies there, `*.bias` for all biases.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import methodcaller
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lightkit.common.text import counted, format_bytes
from lightkit.finetune.phases import Phase
from lightkit.finetune.tables import (
    GroupRow,
    ParameterGroup,
    PhaseTable,
    base_rate,
    format_names,
    format_percent,
    format_rate,
    format_rates,
    split_by_group,
    state_sizes,
)

_PROBES = 16
"""Steps of a phase whose rates tell from where on these are 0."""
Rates = Mapping[int, Sequence[float]]
"""Optimizer step → rate of each group."""


@dataclass(frozen=True)
class FinetunePlan:
    """What trains in a run, phase by phase."""

    phases: tuple[PhaseTable, ...]
    """In their order."""
    optimizer: str = ""
    """Class of the optimizer."""

    def find(self, phase: str) -> PhaseTable | None:
        """Return the table of a phase by its name."""
        return next((table for table in self.phases if table.phase == phase), None)

    def table(self, *, long: bool = False) -> tuple[list[str], list[list[str]]]:
        """Return column heads and cells for people; see `phase_cells`."""
        return ["phase", *COLUMNS], phase_cells(self.phases, long=long)

    def lines(self) -> list[str]:
        """Say in one line a phase what share of the network trains, and how much memory the optimizer takes."""
        return [describe_share(table, self.optimizer) for table in self.phases]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"optimizer": self.optimizer, "phases": [phase_to_json(table) for table in self.phases]}


def plain_phases(model: nn.Module) -> tuple[Phase, ...]:
    """Return the only phase of plain training: all that needs a gradient trains from first to last."""
    return (Phase(frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad), epoch=0),)


def phase_steps(phases: Sequence[Phase], *, steps_per_epoch: int, total_steps: int) -> list[tuple[int, ...]]:
    """Return for each phase the steps whose rates a plan shows: its first, then the first of each epoch in it."""
    begins = [phase.first_step(steps_per_epoch) for phase in phases]
    moments = []
    for begin, end in zip(begins, [*begins[1:], total_steps]):
        epochs = range((begin // steps_per_epoch + 1) * steps_per_epoch, end, steps_per_epoch)
        moments.append((begin, *epochs))
    return moments


def probe_steps(steps: Sequence[tuple[int, ...]], total_steps: int) -> set[int]:
    """Return steps spread evenly over each phase: a schedule with cycles may be at 0 whenever an epoch begins.

    Args:
        steps: For each phase its first step, then others.
        total_steps: Optimizer steps of the run.
    """
    begins = [moments[0] for moments in steps]
    ends = [*begins[1:], total_steps]
    return {begin + (end - begin) * part // _PROBES for begin, end in zip(begins, ends) for part in range(_PROBES)}


def build_plan(
    model: nn.Module,
    optimizer: Optimizer,
    phases: Sequence[Phase],
    *,
    steps: Sequence[tuple[int, ...]],
    rates: Rates | None,
    frozen_rules: tuple[str, ...] = (),
    take_step: Callable[[Optimizer], Any] = methodcaller("step"),
) -> FinetunePlan:
    """Make the plan of a run, before its first step.

    Args:
        model: The network without wrappers.
        optimizer: Over all its groups.
        phases: What trains when.
        steps: From `phase_steps`.
        rates: Optimizer step → rate of each group, for all of `steps` and perhaps for more, which tell whether a rate
            is 0 between these; None where they are not known before.
        frozen_rules: Configuration keys by which some parameters never train.
        take_step: Lets an optimizer take a step, to measure the memory of its state.
    """
    parameters = dict(model.named_parameters())
    in_groups = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    sizes = state_sizes(optimizer, {n: p for n, p in parameters.items() if id(p) in in_groups}, step=take_step)
    if sizes is not None:
        sizes = dict.fromkeys(parameters, 0) | sizes
    tables, trained = [], set[str]()
    ends = [moments[0] for moments in steps[1:]] + [math.inf]
    for phase, moments, end in zip(phases, steps, ends):
        trained |= phase.trainable & set(parameters)
        zero_from = first_zero_steps(rates or {}, moments, end)
        rows = tuple(
            _make_row(
                model,
                group,
                rates=None if rates is None else [rates[step] for step in moments],
                in_eval=phase.frozen_norms,
                frozen_rules=frozen_rules,
                sizes=sizes,
                zero_from=zero_from,
            )
            for group in split_by_group(model, optimizer.param_groups, phase.trainable)
        )
        state = None if sizes is None else sum(sizes[name] for name in trained)
        tables.append(PhaseTable(phase.name, moments, rows, state))
    return FinetunePlan(tuple(tables), type(optimizer).__name__)


def live_table(model: nn.Module, optimizer: Optimizer, *, phase: str, step: int) -> PhaseTable:
    """Make the table of a phase from the live objects: what needs a gradient, the rates of this moment, the modes.

    Args:
        model: The network without wrappers; in eval mode nothing is said of its norm layers.
        optimizer: Its optimizer.
        phase: Name of the phase.
        step: The optimizer step that is about to be taken.
    """
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    in_eval = {path for path, module in model.named_modules() if not module.training} if model.training else None
    rates = [[float(group["lr"]) for group in optimizer.param_groups]]
    groups = split_by_group(model, optimizer.param_groups, trainable)
    return PhaseTable(phase, (step,), tuple(_make_row(model, group, rates=rates, in_eval=in_eval) for group in groups))


def first_zero_steps(rates: Rates, moments: Sequence[int], end: float) -> dict[int, int]:
    """Return from where on the rates of groups are 0 for the rest of a phase.

    Args:
        rates: What is known of the run.
        moments: The steps of the phase to choose from.
        end: First step after it.

    Returns:
        Place of each group whose rate falls to 0 → the first of `moments` with no other rate after.
    """
    known = [step for step in rates if moments[0] <= step < end]
    falls = {}
    for index in range(len(rates[known[0]]) if known else 0):
        last = max((step for step in known if rates[step][index] != 0.0), default=-1)
        idle = [step for step in moments if step > last]
        if idle:
            falls[index] = idle[0]
    return falls


def _make_row(
    model: nn.Module,
    group: ParameterGroup,
    *,
    rates: Sequence[Sequence[float]] | None,
    in_eval: Collection[str] | None,
    frozen_rules: tuple[str, ...] = (),
    sizes: Mapping[str, int] | None = None,
    zero_from: Mapping[int, int] | None = None,
) -> GroupRow:
    """Make the row of a group.

    Args:
        model: The network.
        group: Its parameters.
        rates: Rates of all groups at each step; None where they are not known.
        in_eval: Paths of the modules in eval mode; None where the modes are not known.
        frozen_rules: Configuration keys by which parameters without a group never train.
        sizes: Bytes of optimizer state by parameter; None where they are not known.
        zero_from: From `first_zero_steps`.
    """
    norm = None
    if in_eval is not None:
        frozen, live = set(group.norms) & set(in_eval), set(group.norms) - set(in_eval)
        learning = {path for path in live if group.trains or not list(model.get_submodule(path).parameters())}
        modes = {"frozen": frozen, "stats": live - learning, "train": learning}
        norm = "+".join(mode for mode, paths in modes.items() if paths)
    index, options = group.index, group.group
    decay = options.get("weight_decay")
    return GroupRow(
        group=group.name,
        names=group.names,
        parameters=group.elements,
        frozen=not group.trains,
        rate=None if index is None else base_rate(options),
        rates=None if index is None or rates is None else tuple(float(now[index]) for now in rates),
        weight_decay=None if decay is None else float(decay),
        norm=norm,
        rules=frozen_rules if index is None else tuple(options.get("rules", ())),
        state_bytes=sum(sizes[name] for name in group.names) if sizes is not None and group.trains else None,
        zero_from=None if index is None or not group.trains else (zero_from or {}).get(index),
    )


COLUMNS = ["group", "tensors", "parameters", "trains", "learning rate", "weight decay", "norms", "set by", "holds"]
_DECAY = re.compile(r"(^|\.)(no_)?decay(?= |$)")
_MAX_PATTERNS, _MAX_ENDS = 4, 3


def phase_cells(tables: Sequence[PhaseTable], *, long: bool = False) -> list[list[str]]:
    """Return the cells of all phases; a phase stands in its first row.

    Args:
        tables: The phases in their order.
        long: Leave every group a row of its own in every phase.
    """
    before: dict[str, GroupRow] = {}
    cells_of_rows = []
    for table in tables:
        holds = {row.group: patterns for row, patterns in zip(table.rows, contents(table.rows))}
        together = [[row] for row in table.rows] if long or not before else _group_unchanged(table.rows, before)
        for index, rows in enumerate(together):
            cells = _row_cells(rows[0], holds[rows[0].group]) if len(rows) == 1 else _joint_cells(rows)
            cells_of_rows.append([table.phase if index == 0 else "", *cells])
        before = {row.group: row for row in table.rows}
    return cells_of_rows


def describe_share(table: PhaseTable, optimizer: str) -> str:
    """Say what share of a network trains from a phase on, and what the optimizer keeps."""
    count = f"{table.trainable:,} of {table.parameters:,} parameters train"
    state = "unknown" if table.state_bytes is None else format_bytes(table.state_bytes)
    part = format_percent(table.trainable, table.parameters)
    return f"from {table.phase}: {count} ({part}), optimizer state {state} ({optimizer})"


def phase_to_json(table: PhaseTable) -> dict[str, Any]:
    """Return a phase as plain values."""
    groups = [
        {
            "group": row.group,
            "tensors": row.tensors,
            "parameters": row.parameters,
            "frozen": row.frozen,
            "rate": row.rate,
            "rates": None if row.rates is None else list(row.rates),
            "weight_decay": row.weight_decay,
            "norm": row.norm,
            "rules": list(row.rules),
            "state_bytes": row.state_bytes,
            "holds": holds,
            "names": list(row.names),
        }
        for row, holds in zip(table.rows, contents(table.rows))
    ]
    return {
        "phase": table.phase,
        "steps": list(table.steps),
        "trainable": table.trainable,
        "parameters": table.parameters,
        "state_bytes": table.state_bytes,
        "groups": groups,
    }


def contents(rows: Sequence[GroupRow]) -> list[list[str]]:
    """Return patterns of what each group holds.

    Groups that differ in weight decay only hold the same modules, as each of these has weights and biases.

    Args:
        rows: All groups of a phase, which together are the network.
    """
    every = [name for row in rows for name in row.names]
    together: dict[str, list[str]] = {}
    for row in rows:
        together.setdefault(_name_without_decay(row), []).extend(row.names)
    patterns = {name: few_patterns(names, every) for name, names in together.items()}
    return [
        [
            pattern
            for pattern in patterns[_name_without_decay(row)]
            if any(fnmatchcase(name, pattern) for name in row.names)
        ]
        for row in rows
    ]


def few_patterns(names: Collection[str], every: Collection[str]) -> list[str]:
    """Return few patterns that fit these names and no others.

    Args:
        names: Names of parameters.
        every: Names of all parameters of the network.
    """
    return _patterns_below("", [name for name in every if name in set(names)], list(every))


def _group_unchanged(rows: Sequence[GroupRow], before: Mapping[str, GroupRow]) -> list[list[GroupRow]]:
    """Put the rows that go on as before together where rate and decay are the same, and leave the others alone."""
    joined: dict[object, list[GroupRow]] = {}
    for row in rows:
        old = before.get(row.group)
        same = old is not None and (old.frozen, old.norm, old.names) == (row.frozen, row.norm, row.names)
        joined.setdefault(tuple(_row_cells(row, ())[3:6]) if same else row.group, []).append(row)
    return list(joined.values())


def _row_cells(row: GroupRow, holds: Sequence[str]) -> list[str]:
    """Return the cells of a row, by `COLUMNS`; what is frozen has no rate and no decay that count."""
    idle = row.frozen or row.rate is None
    rate = f"{format_rate(row.rate or 0.0)}, then as validation tells"
    if row.rates is not None:
        rate = format_rates(row.rates)
    return [
        row.group,
        f"{row.tensors:,}",
        f"{row.parameters:,}",
        "no" if row.frozen else "yes",
        "" if idle else rate,
        "" if idle or row.weight_decay is None else f"{row.weight_decay:g}",
        row.norm or "",
        ", ".join(row.rules),
        format_names(holds, most=_MAX_PATTERNS),
    ]


def _joint_cells(rows: Sequence[GroupRow]) -> list[str]:
    """Return the cells of several rows that are put together."""
    norms = sorted({part for row in rows for part in (row.norm or "").split("+")} - {""})
    rules = dict.fromkeys(rule for row in rows for rule in row.rules)
    return [
        f"{counted(len(rows), 'group')} as before",
        f"{sum(row.tensors for row in rows):,}",
        f"{sum(row.parameters for row in rows):,}",
        *_row_cells(rows[0], ())[3:6],
        "+".join(norms),
        ", ".join(rules),
        "",
    ]


def _name_without_decay(row: GroupRow) -> str:
    """Return a group's name without what says of its weight decay."""
    return _DECAY.sub("", row.group)


def _patterns_below(path: str, names: list[str], every: list[str]) -> list[str]:
    """Return patterns of names below a path, which ends in a dot or is empty."""
    if len(names) == len(every):
        return [f"{path}*"] if len(every) > 1 else names
    by_end = _patterns_by_end(path, names, every)
    if by_end:
        return by_end
    children: dict[str, list[str]] = {}
    for name in names:
        child, dot, _ = name.removeprefix(path).partition(".")
        children.setdefault(f"{path}{child}{dot}", []).append(name)
    patterns = []
    for child, own in children.items():
        within = [name for name in every if name.startswith(child)]
        patterns += _patterns_below(child, own, within) if child.endswith(".") else own
    return patterns


def _patterns_by_end(path: str, names: list[str], every: list[str]) -> list[str]:
    """Return `*.bias` where these are all the biases below a path, in several modules; nothing where they are not."""
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    deeper = all("." in name.removeprefix(path) for name in names)
    if not deeper or len(ends) > _MAX_ENDS or len(names) <= len(ends):
        return []
    same = [name for name in every if name.rpartition(".")[2] in ends]
    return [f"{path}*.{end}" for end in ends] if len(same) == len(names) else []
