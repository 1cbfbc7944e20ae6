"""Tables from CSV files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.data.csv_reader import Table, is_missing, is_number, read_table
from lightkit.data.impute import Gaps, Imputer
from lightkit.data.info import DataInfo
from lightkit.data.missing import Missing
from lightkit.data.tables import check_scale
from lightkit.data.tensors import TensorData

_TASKS = ("multiclass", "binary", "multilabel", "regression")
_MOST_CLASSES = 20
_SPLITS = ("train", "val", "test")


def csv(
    path: str,
    target: str | Sequence[str],
    features: Sequence[str] | None = None,
    *,
    task: str | None = None,
    categorical: Sequence[str] = (),
    delimiter: str = ",",
    encoding: str = "utf-8",
    missing: str | Mapping[str, str] = "error",
    fill_value: float | str | Mapping[str, Any] | None = None,
    add_indicator: bool = False,
    val_path: str | None = None,
    test_path: str | None = None,
    split_column: str | None = None,
    target_scale: float = 1.0,
) -> TensorData:
    """A table whose first line names the columns.

    Categorical columns become one 0/1 feature per value found in `path`; a value found in the other files only is none
    of them. Classes are numbered in the order of their names (of their values, if they are numbers).

    Args:
        path: The file; with `test_path` or `val_path` its rows are the training part.
        target: Column to predict; several for `multilabel` (0/1) or several regression targets.
        features: Columns to predict from; None takes all others.
        task: `multiclass`, `binary` (one output), `multilabel` or `regression`; None finds out: text and up to 20 whole
            numbers are classes, several columns of 0 and 1 are labels.
        categorical: Feature columns that hold names.
        delimiter: What stands between two cells, such as `;`.
        encoding: How the text is written down, such as `utf-8`, `latin-1` or `cp1252`.
        missing: What to do about a missing value: `error`, `drop` its row, or fill in the `mean`, `median` or
            `most_frequent` value of the column in the training rows, or a `constant`, as scikit-learn's `SimpleImputer`
            does. A mapping says it by name pattern of columns (`{"*": mean, colour: most_frequent}`; the later win,
            what none fits is an error). Targets are never filled in. Infinite numbers count as missing.
        fill_value: What `constant` fills in, for all such columns or by name; None is 0, in categorical columns a kind
            of its own, `missing_value`.
        add_indicator: Add a 0/1 feature for each column that lacks values in training rows, after the others.
        val_path: File of the validation rows.
        test_path: File of the test rows.
        split_column: Column that says `train`, `val` or `test`.
        target_scale: Regression targets are divided by this.

    Raises:
        UserError: A file, a column or a cell is wrong; its line is named.
    """
    targets = [target] if isinstance(target, str) else list(target)
    paths = {"train": path, "val": val_path, "test": test_path}
    tables = {
        name: read_table(file, delimiter=delimiter, encoding=encoding, key=_path_key(name))
        for name, file in paths.items()
        if file is not None
    }
    first = tables["train"]
    chosen = _feature_names(first, features, targets=targets, categorical=categorical, split_column=split_column)
    policy, notes = Missing(missing, fill_value, chosen, targets, categorical), list[str]()
    for name, table in tables.items():
        table.need([*chosen, *targets, *([] if split_column is None else [split_column])], key=_path_key(name))
        tables[name], told = policy.settled(table)
        notes += told
    kinds = {name: _kinds(tables["train"], name, policy) for name in categorical}
    task = _task(tables["train"], targets, task)
    y, names = _targets(list(tables.values()), targets, task=task, scale=check_scale(target_scale))
    x = torch.cat([_inputs(table, chosen, kinds, policy) for table in tables.values()])
    count = 1 if task == "binary" else len(names) if task == "multiclass" else len(targets)
    return TensorData(
        x,
        y,
        DataInfo(task, (x.shape[1],), count, names),
        splits=_splits(tables, split_column),
        strata=y.to(torch.int64) if task == "binary" else None,
        name=str(first.path),
        imputer=_imputer(chosen, kinds, policy, add_indicator=add_indicator),
        notes=notes,
    )


def _path_key(split: str) -> str:
    return "data.dataset.path" if split == "train" else f"data.dataset.{split}_path"


def _feature_names(
    table: Table,
    features: Sequence[str] | None,
    *,
    targets: list[str],
    categorical: Sequence[str],
    split_column: str | None,
) -> list[str]:
    if not targets:
        raise UserError("no column to predict", key="data.dataset.target", choices=table.columns)
    table.need(targets, key="data.dataset.target")
    table.need([] if split_column is None else [split_column], key="data.dataset.split_column")
    others = [name for name in table.columns if name not in (*targets, split_column)]
    chosen = others if features is None else list(features)
    table.need(chosen, key="data.dataset.features")
    table.need(categorical, key="data.dataset.categorical")
    twice = [name for name in chosen if name in targets]
    if twice:
        raise UserError("the target is among the features", key="data.dataset.features", received=twice[0])
    if not chosen:
        raise UserError("no column to predict from", key="data.dataset.features", choices=others)
    unused = [name for name in categorical if name not in chosen]
    if unused:
        raise UserError("not among the features", key="data.dataset.categorical", received=unused[0], choices=chosen)
    return chosen


def _kinds(table: Table, name: str, policy: Missing) -> list[str]:
    """The values of a categorical column, in order."""
    found = {cell for cell in table.columns[name] if not is_missing(cell)}
    if not found:
        raise UserError(f"{table.path}: column {name!r} has no value", key="data.dataset.categorical", received=name)
    return sorted(found | {str(policy.constant(name))} if policy.ways[name] == "constant" else found)


def _inputs(table: Table, names: list[str], kinds: dict[str, list[str]], policy: Missing) -> Tensor:
    """Features `(N, F)`, categorical ones spread out, in the order of the columns; NaN where one is to be filled in."""
    columns: list[Tensor] = []
    for name in names:
        gaps = policy.filled(name)
        if name not in kinds:
            columns.append(table.numbers(name, key="data.dataset.features", gaps=gaps))
            continue
        missing = [gaps and is_missing(cell) for cell in table.columns[name]]
        for kind in kinds[name]:
            cells = zip(table.columns[name], missing, strict=True)
            columns.append(torch.tensor([math.nan if gap else float(cell == kind) for cell, gap in cells]))
    return torch.stack(columns, 1)


def _imputer(names: list[str], kinds: dict[str, list[str]], policy: Missing, *, add_indicator: bool) -> Imputer | None:
    """What fills in missing values; None where nothing is to be filled in."""
    found, first = list[Gaps](), 0
    for name in names:
        own = tuple(kinds[name]) if name in kinds else None
        if policy.filled(name):
            constant = policy.constant(name) if policy.ways[name] == "constant" else 0.0
            found.append(Gaps(name, policy.ways[name], first, own, constant))
        first += 1 if own is None else len(own)
    if add_indicator and not found:
        raise UserError(
            "there is nothing to indicate where nothing is filled in",
            key="data.dataset.add_indicator",
            received=add_indicator,
            fix="data.dataset.missing=median, or another way to fill values in",
        )
    return Imputer(found, add_indicator=add_indicator) if found else None


def _task(table: Table, targets: list[str], task: str | None) -> str:
    """The kind of task: what was asked for, or what the values of the targets look like."""
    if task is None:
        return _guessed([set(table.columns[name]) for name in targets])
    if task not in _TASKS:
        raise UserError("not a kind of task", key="data.dataset.task", received=task, choices=_TASKS)
    if task in ("multiclass", "binary") and len(targets) > 1:
        raise UserError(f"{task} has one target column", key="data.dataset.target", received=targets)
    return task


def _guessed(columns: list[set[str]]) -> str:
    cells = set[str]().union(*columns)
    numbers = {float(cell) for cell in cells if is_number(cell)}
    only_numbers = all(map(is_number, cells))
    if len(columns) > 1:
        return "multilabel" if only_numbers and numbers <= {0, 1} else "regression"
    few = all(number.is_integer() for number in numbers) and len(cells) <= _MOST_CLASSES
    return "multiclass" if few or not only_numbers else "regression"


def _targets(tables: list[Table], targets: list[str], *, task: str, scale: float) -> tuple[Tensor, tuple[str, ...]]:
    """Targets of all tables and the names of the classes or labels."""
    if task in ("multiclass", "binary"):
        return _classes(tables, targets[0], binary=task == "binary")
    columns = [torch.cat([t.numbers(name, key="data.dataset.target") for t in tables]) for name in targets]
    if task == "multilabel":
        return torch.stack(columns, 1), tuple(targets)
    y = torch.stack(columns, 1) / scale
    return y[:, 0] if len(targets) == 1 else y, ()


def _classes(tables: list[Table], target: str, *, binary: bool) -> tuple[Tensor, tuple[str, ...]]:
    found = set(tables[0].columns[target])
    names = sorted(found, key=float) if all(map(is_number, found)) else sorted(found)
    if len(names) == 1:
        raise UserError(
            f"column {target!r} holds one class only",
            key="data.dataset.target",
            expected="2 classes or more",
            received=names[0],
            choices=[name for name in tables[0].columns if name != target],
        )
    if binary and len(names) != 2:
        raise UserError("binary needs a target of two values", key="data.dataset.task", received=names[:5])
    number = {name: i for i, name in enumerate(names)}
    for table in tables:
        for line, cell in zip(table.lines, table.columns[target], strict=True):
            if cell not in number:
                raise UserError(
                    f"{table.path}, line {line}: a class that the training rows lack",
                    key="data.dataset.target",
                    received=cell,
                    choices=names,
                )
    y = torch.tensor([number[cell] for table in tables for cell in table.columns[target]])
    return (y.to(torch.float32), (names[1],)) if binary else (y, tuple(names))


def _splits(tables: dict[str, Table], split_column: str | None) -> dict[str, Tensor]:
    if split_column is None:
        pieces = torch.arange(sum(map(len, tables.values()))).split([len(table) for table in tables.values()])
        return dict(zip(tables, pieces, strict=True)) if len(tables) > 1 else {}
    if len(tables) > 1:
        raise UserError(
            "either files or a column say what the splits are",
            key="data.dataset.split_column",
            received=split_column,
            fix="leave out val_path and test_path",
        )
    table = tables["train"]
    cells = table.columns[split_column]
    for line, cell in zip(table.lines, cells, strict=True):
        if cell not in _SPLITS:
            raise UserError(
                f"{table.path}, line {line}: not a split",
                key="data.dataset.split_column",
                received=cell,
                choices=_SPLITS,
            )
    rows = {name: [i for i, cell in enumerate(cells) if cell == name] for name in _SPLITS}
    return {name: torch.tensor(found) for name, found in rows.items() if found}
