"""Tables from CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.csv_lines import CsvFile, open_csv
from lightkit.common.errors import UserError
from lightkit.data.csv_columns import NameColumn, is_missing, is_number
from lightkit.data.csv_reader import Table, read_table
from lightkit.data.impute import Gaps, Imputer
from lightkit.data.info import DataInfo
from lightkit.data.missing import MissingPolicy
from lightkit.data.row_sets import KNOWN, split_named
from lightkit.data.tensors import TensorData, check_scale

_TASKS = ("multiclass", "binary", "multilabel", "regression")
_NUMBERS = ("multilabel", "regression")
"""Tasks whose targets are numbers."""
_MOST_CLASSES = 20


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
    group_column: str | None = None,
    target_scale: float = 1.0,
) -> TensorData:
    """Read a table whose first line names the columns.

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
        split_column: Column that says `train`, `val` or `test`, or another name of these (`validation`, `dev`).
        group_column: Column that says what a row belongs to, such as a patient. Rows of a group stay together in splits
            and folds. It is no feature unless `features` names it.
        target_scale: Regression targets are divided by this.

    Raises:
        UserError: A file, a column or a cell is wrong; its line is named.
    """
    targets = [target] if isinstance(target, str) else list(target)
    paths = {"train": path, "val": val_path, "test": test_path}
    files = {
        name: open_csv(file, delimiter=delimiter, encoding=encoding, argument=_path_argument(name))
        for name, file in paths.items()
        if file is not None
    }
    chosen = _feature_names(
        files["train"],
        features,
        targets=targets,
        categorical=categorical,
        marks={"split_column": split_column, "group_column": group_column},
    )
    policy, notes = MissingPolicy(missing, fill_value, chosen, targets, categorical), list[str]()
    if task not in (None, *_TASKS):
        raise UserError("not a kind of task", argument="task", received=task, choices=_TASKS)
    if task in ("multiclass", "binary") and len(targets) > 1:
        raise UserError(f"{task} has one target column", argument="target", received=targets)
    marks = [name for name in (split_column, group_column) if name is not None]
    names = [*categorical, *marks, *(targets if task not in _NUMBERS else ())]
    tables = dict[str, Table]()
    for name, file in files.items():
        file.need([*chosen, *targets, *marks], argument=_path_argument(name))
        tables[name], left_out = policy.applied(read_table(file, numbers=[*chosen, *targets], names=names))
        notes += left_out
    kinds = {name: _kinds(tables["train"], name, policy) for name in categorical}
    task = task or _guess_task([tables["train"].names(name) for name in targets])
    y, classes = _targets(list(tables.values()), targets, task=task, scale=check_scale(target_scale))
    x = _inputs(list(tables.values()), chosen, kinds)
    count = 1 if task == "binary" else len(classes) if task == "multiclass" else len(targets)
    return TensorData(
        x,
        y,
        DataInfo(task, (x.shape[1],), count, classes),
        splits=_splits(tables, split_column),
        strata=y.to(torch.int64) if task == "binary" else None,
        name=str(files["train"].path),
        imputer=_imputer(chosen, kinds, policy, add_indicator=add_indicator),
        notes=notes,
        feature_names=[f"{name}={kind}" if kind else name for name in chosen for kind in kinds.get(name, [""])],
        groups=None if group_column is None else _groups([*tables.values()], group_column),
    )


def _path_argument(split: str) -> str:
    return "path" if split == "train" else f"{split}_path"


def _feature_names(
    file: CsvFile,
    features: Sequence[str] | None,
    *,
    targets: list[str],
    categorical: Sequence[str],
    marks: Mapping[str, str | None],
) -> list[str]:
    """Return the columns to predict from, and refuse names of columns that the file lacks."""
    if not targets:
        raise UserError("no column to predict", argument="target", choices=file.names)
    file.need(targets, argument="target")
    for argument, name in marks.items():
        file.need([] if name is None else [name], argument=argument)
    others = [name for name in file.names if name not in (*targets, *marks.values())]
    chosen = others if features is None else list(features)
    file.need(chosen, argument="features")
    file.need(categorical, argument="categorical")
    twice = [name for name in chosen if name in targets]
    if twice:
        raise UserError("the target is among the features", argument="features", received=twice[0])
    if not chosen:
        raise UserError("no column to predict from", argument="features", choices=others)
    unused = [name for name in categorical if name not in chosen]
    if unused:
        raise UserError("not among the features", argument="categorical", received=unused[0], choices=chosen)
    return chosen


def _kinds(table: Table, name: str, policy: MissingPolicy) -> list[str]:
    """List the values of a categorical column, in order."""
    found = {cell for cell in table.names(name).found() if not is_missing(cell)}
    if not found:
        raise UserError(f"{table.path}: column {name!r} has no value", argument="categorical", received=name)
    return sorted(found | {str(policy.constant(name))} if policy.ways[name] == "constant" else found)


def _inputs(tables: Sequence[Table], names: Sequence[str], kinds: Mapping[str, list[str]]) -> Tensor:
    """Make features `(N, F)`, categorical columns one-hot, in the order of the columns; NaN for missing values."""
    widths = [len(kinds[name]) if name in kinds else 1 for name in names]
    x = torch.empty(sum(map(len, tables)), sum(widths))
    for table, rows in zip(tables, x.split([len(table) for table in tables]), strict=True):
        for name, features in zip(names, rows.split(widths, 1), strict=True):
            if name not in kinds:
                features[:, 0] = table.numbers(name, argument="features")
                continue
            column = table.names(name)
            number = torch.from_numpy(column.numbered({kind: i for i, kind in enumerate(kinds[name])}))
            known = (number >= 0).nonzero()[:, 0]
            features.zero_()
            features[known, number[known]] = 1.0
            features[torch.from_numpy(column.missing)] = torch.nan
    return x


def _imputer(
    names: list[str], kinds: dict[str, list[str]], policy: MissingPolicy, *, add_indicator: bool
) -> Imputer | None:
    """Make what fills in missing values; None where nothing is to be filled in."""
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
            argument="add_indicator",
            received=add_indicator,
            fix="data.dataset.missing=median, or another way to fill values in",
        )
    return Imputer(found, add_indicator=add_indicator) if found else None


def _guess_task(columns: Sequence[NameColumn]) -> str:
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


def _targets(tables: list[Table], targets: list[str], *, task: str, scale: float) -> tuple[Tensor, tuple[str, ...]]:
    """Return the targets of all tables and the names of the classes or labels."""
    if task in ("multiclass", "binary"):
        return _classes(tables, targets[0], binary=task == "binary")
    columns = [torch.cat([t.numbers(name, argument="target") for t in tables]) for name in targets]
    if task == "multilabel":
        return torch.stack(columns, 1), tuple(targets)
    y = torch.stack(columns, 1) / scale
    return y[:, 0] if len(targets) == 1 else y, ()


def _classes(tables: list[Table], target: str, *, binary: bool) -> tuple[Tensor, tuple[str, ...]]:
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
    y = torch.cat([_numbered(table, target, names, "a class that the training rows lack") for table in tables])
    return (y.to(torch.float32), (names[1],)) if binary else (y, tuple(names))


def _numbered(table: Table, name: str, known: Sequence[str], problem: str, argument: str = "target") -> Tensor:
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
    return torch.from_numpy(numbers)


def _groups(tables: Sequence[Table], column: str) -> list[str]:
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


def _splits(tables: dict[str, Table], split_column: str | None) -> dict[str, Tensor]:
    if split_column is None:
        pieces = torch.arange(sum(map(len, tables.values()))).split([len(table) for table in tables.values()])
        return dict(zip(tables, pieces, strict=True)) if len(tables) > 1 else {}
    if len(tables) > 1:
        raise UserError(
            "either files or a column say what the splits are",
            argument="split_column",
            received=split_column,
            fix="leave out val_path and test_path",
        )
    named = filter(split_named, tables["train"].names(split_column).found())  # in capitals too
    known = [*dict.fromkeys([*KNOWN, *named])]
    parts = _numbered(tables["train"], split_column, known, "not a split", argument="split_column")
    return {name: found for i, name in enumerate(known) if len(found := (parts == i).nonzero()[:, 0])}
