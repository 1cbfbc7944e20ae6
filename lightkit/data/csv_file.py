"""Tables from CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lightkit.common.errors import UserError
from lightkit.data.csv_reader import class_words
from lightkit.data.csv_table import Tables, TableSpec, read_tables
from lightkit.data.impute import Gaps, Imputer
from lightkit.data.missing import MissingPolicy
from lightkit.data.table_reader import TableReader, encode
from lightkit.data.tensors import DataInfo, TensorData, check_scale


def csv(
    path: str,
    target: str | Sequence[str],
    features: Sequence[str] | None = None,
    *,
    task: str | None = None,
    categorical: Sequence[str] = (),
    delimiter: str = ",",
    encoding: str = "utf-8",
    decimal: str = ".",
    thousands: str = "",
    missing: str | Mapping[str, str] = "error",
    fill_value: float | str | Mapping[str, Any] | None = None,
    add_indicator: bool = False,
    val_path: str | None = None,
    test_path: str | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
    time_column: str | None = None,
    weight_column: str | None = None,
    target_scale: float = 1.0,
    max_categories: int = 100,
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
        decimal: What stands before the fraction of a number, `.` or `,`.
        thousands: What stands between groups of three digits, such as `,` in `1,234.5`; empty for nothing.
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
        time_column: Column with the time of a row, a number or a date such as `2024-01-31`, for splits by time. It is
            no feature unless `features` names it.
        weight_column: Column that says how much a row counts, 0 or more: the loss is a weighted mean. It is no feature
            unless `features` names it.
        target_scale: Regression targets are divided by this.
        max_categories: Different names that a categorical column may hold: each becomes a feature.

    Raises:
        UserError: A file, columns or cells are wrong; lines are named, and all that is wrong is in one report.
    """
    spec, scale = TableSpec(**locals()), check_scale(target_scale)
    tables = read_tables(spec)
    y, kinds, names = torch.from_numpy(tables.y), tables.kinds, tables.features
    y = y / scale if tables.task == "regression" else y
    x = torch.cat([encode(table.columns, names, kinds) for table in tables.parts.values()])
    count = y.shape[1] if y.ndim > 1 else len(tables.classes) if tables.task == "multiclass" else 1
    return TensorData(
        x,
        y,
        DataInfo(tables.task, (x.shape[1],), count, tables.classes, target_scale=scale),
        splits={name: torch.from_numpy(rows) for name, rows in tables.splits.items()},
        strata=y.to(torch.int64) if tables.task == "binary" else None,
        name=str(tables.parts["train"].path),
        imputer=_imputer(names, kinds, tables.policy, add_indicator=add_indicator),
        notes=tables.notes,
        feature_names=[f"{name}={kind}" if kind else name for name in names for kind in kinds.get(name, [""])],
        groups=tables.groups,
        times=_cells(tables, time_column),
        weights=_cells(tables, weight_column),
        reader=_reader(tables, spec),
    )


def _cells(tables: Tables, name: str | None) -> np.ndarray | None:
    """Return the texts `(N,)` in a column of all tables that was read as names; None without a column."""
    columns = [table.names(name) for table in tables.parts.values()] if name is not None else []
    return np.concatenate([np.asarray(one.kinds)[one.codes] for one in columns]) if columns else None


def _reader(tables: Tables, spec: TableSpec) -> TableReader:
    """Return what reads new rows of such tables."""
    words = class_words(tables.parts["train"], spec.targets[0]) if tables.task == "binary" else []
    spelling = {"delimiter": spec.delimiter, "encoding": spec.encoding}
    return TableReader(
        tables.features,
        tables.kinds,
        [name for name in tables.features if tables.policy.filled(name)],
        spec.targets,
        words,
        spelling | {"decimal": spec.decimal, "thousands": spec.thousands},
    )


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
