"""A plan for people: every group in the first phase, in later ones what changes, and the rest in few rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import lightkit.finetune.audit.wording as wording
from lightkit.finetune.audit.contents import contents

if TYPE_CHECKING:
    from lightkit.finetune.audit.plan import GroupRow, PhaseTable


def folded(tables: Sequence[PhaseTable], *, long: bool = False) -> list[list[str]]:
    """Cells of all phases; a phase stands in its first row.

    Args:
        tables: The phases in their order.
        long: Leave every group a row of its own in every phase.
    """
    before: dict[str, GroupRow] = {}
    found = []
    for table in tables:
        holds = {row.group: held for row, held in zip(table.rows, contents(table.rows))}
        parts = [[row] for row in table.rows] if long or not before else _alike(table.rows, before)
        cells = [_together(part, holds) for part in parts]
        found += [[table.phase if index == 0 else "", *line] for index, line in enumerate(cells)]
        before = {row.group: row for row in table.rows}
    return found


def _alike(rows: Iterable[GroupRow], before: dict[str, GroupRow]) -> list[list[GroupRow]]:
    """The rows that go on as before, put together where rate and decay are the same; the others alone."""
    found: dict[object, list[GroupRow]] = {}
    for row in rows:
        old = before.get(row.group)
        same = old is not None and (old.frozen, old.norm, old.names) == (row.frozen, row.norm, row.names)
        cells = wording.cells(row, ())
        found.setdefault(tuple(cells[3:6]) if same else row.group, []).append(row)
    return list(found.values())


def _together(rows: Sequence[GroupRow], holds: Mapping[str, list[str]]) -> list[str]:
    """The cells of a row, or of several that are put together."""
    cells = [wording.cells(row, holds[row.group]) for row in rows]
    if len(rows) == 1:
        return cells[0]
    norms = sorted({part for row in rows for part in (row.norm or "").split("+")} - {""})
    rules = dict.fromkeys(rule for row in rows for rule in row.rules)
    return [
        f"{len(rows)} groups as before",
        f"{sum(row.tensors for row in rows):,}",
        f"{sum(row.parameters for row in rows):,}",
        *cells[0][3:6],
        "+".join(norms),
        ", ".join(rules),
        "",
    ]
