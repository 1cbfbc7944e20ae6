"""What a table says beside its features: targets and the kind of task, splits and groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from lightkit.common.errors import UserError
from lightkit.common.names import KNOWN, split_named
from lightkit.data.csv_columns import NameColumn, is_number
from lightkit.data.csv_reader import Table

_MOST_CLASSES = 20


def guess_task(columns: Sequence[NameColumn]) -> str:
    """Guess the kind of task from the values of the targets."""
    if any(len(column.numbers.text) for column in columns):
        return "multiclass" if len(columns) == 1 else "regression"
    if len(columns) > 1:
        return "multilabel" if all(map(_is_label, columns)) else "regression"
    few = len(columns[0].used) <= _MOST_CLASSES
    return "multiclass" if few and all(float(cell).is_integer() for cell in columns[0].found()) else "regression"


def _is_label(column: NameColumn) -> bool:
    rounded = np.isin(column.as_kinds.values[column.used], (0, 1))
    return bool(rounded.all()) and {float(cell) for cell in column.found()} <= {0, 1}


def read_targets(tables: list[Table], targets: list[str], *, task: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the targets of all tables and the names of the classes or labels."""
    if task in ("multiclass", "binary"):
        return _classes(tables, targets[0], binary=task == "binary")
    y = np.stack([np.concatenate([t.numbers(name).values for t in tables]) for name in targets], 1)
    if task == "multilabel":
        return y, tuple(targets)
    return y[:, 0] if len(targets) == 1 else y, ()


def _classes(tables: list[Table], target: str, *, binary: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    found = tables[0].names(target).found()
    names = sorted(found, key=lambda name: (float(name), name)) if all(map(is_number, found)) else sorted(found)
    if len(names) == 1:
        raise UserError(
            f"column {target!r} holds one class only",
            argument="target",
            expected="2 classes or more",
            received=names[0],
            choices=[name for name in tables[0].file.names if name != target],
        )
    if binary and len(names) != 2:
        raise UserError("binary needs a target of two values", argument="task", received=names[:5])
    y = np.concatenate([_numbered(table, target, names, "a class that the training rows lack") for table in tables])
    return (y.astype(np.float32), (names[1],)) if binary else (y, tuple(names))


def _numbered(table: Table, name: str, known: Sequence[str], problem: str, argument: str = "target") -> np.ndarray:
    """Return the cells of a column as `(N,)` places in a list of known values."""
    numbers = table.names(name).numbered({cell: i for i, cell in enumerate(known)})
    unknown = np.flatnonzero(numbers < 0)
    if len(unknown):
        line, cell = table.cell(int(unknown[0]), name)
        raise UserError(
            f"{table.path}, line {line}: {problem}",
            argument=argument,
            received=cell,
            choices=known,
            family="data-unreadable",
        )
    return numbers


def read_groups(tables: Sequence[Table], column: str) -> list[str]:
    """Return the name of the group of each row of all tables, and refuse a row without one."""
    found = list[str]()
    for table in tables:
        own = table.names(column)
        if len(own.missing):
            line, cell = table.cell(int(own.missing[0]), column)
            raise UserError(
                f"{table.path}, line {line}: the row belongs to no group",
                argument="group_column",
                expected=f"a name in column {column!r}",
                received=repr(cell),
                fix="give such a row a group of its own, or leave it out",
                family="data-unreadable",
            )
        names = {code: name for name, code in own.found().items()}
        found += [names[code] for code in own.codes.tolist()]
    return found


def read_splits(tables: dict[str, Table], split_column: str | None) -> dict[str, np.ndarray]:
    """Return the rows of each split that files or a column name, and refuse a cell that names none."""
    if split_column is None:
        ends = np.cumsum([0, *map(len, tables.values())])
        pieces = [np.arange(first, end) for first, end in pairwise(ends)]
        return dict(zip(tables, pieces, strict=True)) if len(tables) > 1 else {}
    if len(tables) > 1 or split_column not in tables["train"].columns:
        return {}  # which is told elsewhere
    named = filter(split_named, tables["train"].names(split_column).found())  # in capitals too
    known = [*dict.fromkeys([*KNOWN, *named])]
    parts = _numbered(tables["train"], split_column, known, "not a split", argument="split_column")
    return {name: found for i, name in enumerate(known) if len(found := np.flatnonzero(parts == i))}
