"""A plan for people and for files: cells of a table, lines of text, plain values.

In the first phase every group has a row, in later ones those that change, and the rest few rows together. What a group
holds is said in few patterns: `layer3.*` for all that lies there, `*.bias` for all biases.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from lightkit.common.text import counted
from lightkit.finetune.audit.tables import (
    GroupRow,
    PhaseTable,
    format_bytes,
    format_names,
    format_percent,
    format_rate,
    format_rates,
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
    found = []
    for table in tables:
        holds = {row.group: patterns for row, patterns in zip(table.rows, contents(table.rows))}
        together = [[row] for row in table.rows] if long or not before else _group_unchanged(table.rows, before)
        for index, rows in enumerate(together):
            cells = _row_cells(rows[0], holds[rows[0].group]) if len(rows) == 1 else _joint_cells(rows)
            found.append([table.phase if index == 0 else "", *cells])
        before = {row.group: row for row in table.rows}
    return found


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
    found = {name: few_patterns(names, every) for name, names in together.items()}
    return [
        [
            pattern
            for pattern in found[_name_without_decay(row)]
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
    found: dict[object, list[GroupRow]] = {}
    for row in rows:
        old = before.get(row.group)
        same = old is not None and (old.frozen, old.norm, old.names) == (row.frozen, row.norm, row.names)
        found.setdefault(tuple(_row_cells(row, ())[3:6]) if same else row.group, []).append(row)
    return list(found.values())


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
    found = []
    for child, own in children.items():
        within = [name for name in every if name.startswith(child)]
        found += _patterns_below(child, own, within) if child.endswith(".") else own
    return found


def _patterns_by_end(path: str, names: list[str], every: list[str]) -> list[str]:
    """Return `*.bias` where these are all the biases below a path, in several modules; nothing where they are not."""
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    deeper = all("." in name.removeprefix(path) for name in names)
    if not deeper or len(ends) > _MAX_ENDS or len(names) <= len(ends):
        return []
    same = [name for name in every if name.rpartition(".")[2] in ends]
    return [f"{path}*.{end}" for end in ends] if len(same) == len(names) else []
