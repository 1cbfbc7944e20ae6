"""What the groups of a plan hold, in few words: `layer3.*` for all that lies there, `*.bias` for all biases."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightkit.finetune.audit.plan import GroupRow

_DECAY = re.compile(r"(^|\.)(no_)?decay(?= |$)")
_MOST_ENDS = 3


def contents(rows: Sequence[GroupRow]) -> list[list[str]]:
    """Patterns of what each group holds.

    Groups that differ in weight decay only hold the same modules, as each of these has weights and biases.

    Args:
        rows: All groups of a phase, which together are the network.
    """
    every = [name for row in rows for name in row.names]
    together: dict[str, list[str]] = {}
    for row in rows:
        together.setdefault(_place(row), []).extend(row.names)
    parts = {place: patterns(names, every) for place, names in together.items()}
    return [[part for part in parts[_place(row)] if _any_fits(row.names, part)] for row in rows]


def patterns(names: Collection[str], every: Collection[str]) -> list[str]:
    """Few patterns that fit these names and no others.

    Args:
        names: Names of parameters.
        every: Names of all parameters of the network.
    """
    return _below("", [name for name in every if name in set(names)], list(every))


def _place(row: GroupRow) -> str:
    """A group's name without what says of its weight decay."""
    return _DECAY.sub("", row.group)


def _any_fits(names: Collection[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _below(path: str, mine: list[str], every: list[str]) -> list[str]:
    """Patterns below a path, which ends in a dot or is empty."""
    if len(mine) == len(every):
        return [f"{path}*"] if len(every) > 1 else mine
    by_end = _by_end(path, mine, every)
    if by_end:
        return by_end
    found: dict[str, list[str]] = {}
    for name in mine:
        child, dot, _ = name.removeprefix(path).partition(".")
        found.setdefault(f"{path}{child}{dot}", []).append(name)
    parts = []
    for child, names in found.items():
        inner = child.endswith(".")
        parts += _below(child, names, [name for name in every if name.startswith(child)]) if inner else names
    return parts


def _by_end(path: str, mine: list[str], every: list[str]) -> list[str]:
    """`*.bias` where these are all the biases below a path, in several modules; empty where they are not."""
    ends = list(dict.fromkeys(name.rpartition(".")[2] for name in mine))
    deeper = all("." in name.removeprefix(path) for name in mine)
    if not deeper or len(ends) > _MOST_ENDS or len(mine) <= len(ends):
        return []
    same = [name for name in every if name.rpartition(".")[2] in ends]
    return [f"{path}*.{end}" for end in ends] if len(same) == len(mine) else []
