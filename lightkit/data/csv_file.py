"""Tables from files and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.data.csv_table import Tables, TableSpec, read_tables
from lightkit.data.impute import Gaps, Imputer
from lightkit.data.missing import MissingPolicy
from lightkit.data.table_columns import class_words
from lightkit.data.table_encodings import Codes, Encoding, OneHot, encode
from lightkit.data.table_reader import TableReader
from lightkit.data.targets import TargetTransform
from lightkit.data.tensors import DataInfo, TensorData, check_scale


def table(
    path: str | None = None,
    target: str | Sequence[str] = (),
    features: Sequence[str] | None = None,
    *,
    frame: Any = None,
    task: str | None = None,
    categorical: Sequence[str] = (),
    embedded: Sequence[str] = (),
    dates: Sequence[str] = (),
    date_format: str = "",
    text: Sequence[str] = (),
    text_features: int = 256,
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
    id_column: str | None = None,
    target_scale: float = 1.0,
    target_transform: str = "none",
    max_categories: int = 100,
    cache: bool = True,
) -> TensorData:
    """Read a table by the names of its columns: a file, several files with the same columns, or a data frame.

    Categorical columns become one 0/1 feature per value found in `path`; a value found in the other files only is none
    of them. Classes are numbered in the order of their names (of their values, if they are numbers).

    Args:
        path: A `.csv`, `.tsv`, `.parquet`, `.feather`, `.arrow` or `.jsonl` file, a folder or pattern of such files;
            other endings are read as CSV. With `test_path` or `val_path` its rows are the training part.
        target: Column to predict; several for `multilabel` (0/1) or several regression targets.
        features: Columns to predict from; None takes all others.
        frame: A data frame of pandas, polars or Arrow in place of `path`; in a configuration a function that makes it.
        task: `multiclass`, `binary` (one output), `multilabel` or `regression`; None finds out: text and up to 20 whole
            numbers are classes, several columns of 0 and 1 are labels.
        categorical: Feature columns that hold names.
        embedded: Feature columns that hold names, for a model that learns a vector for each name (`model=tabular`).
        dates: Feature columns that hold dates: year, month, day, weekday and hour are features, and points on a circle
            for all but the year.
        date_format: How dates are written, as for `datetime.strptime`; empty for ISO 8601.
        text: Feature columns that hold texts: words and pairs of words are counted, hashed to `text_features` features.
        text_features: Features of a column of texts.
        delimiter: What stands between two cells, such as `;`.
        encoding: How the text is written down, such as `utf-8`, `latin-1` or `cp1252`.
        decimal: What stands before the fraction of a number, `.` or `,`.
        thousands: What stands between groups of three digits, such as `,` in `1,234.5`; empty for nothing.
        missing: What to do about a missing value: `error`, `drop` its row, or fill in the `mean`, `median` or
            `most_frequent` value of the column in the training rows, or a `constant`, as scikit-learn's `SimpleImputer`
            does. A mapping says it by name pattern of columns (`{"*": mean, colour: most_frequent}`; the later win,
            what none fits is an error). Targets are never filled in. Infinite numbers count as missing.
        fill_value: What `constant` fills in, for all such columns or by name; None is 0, in columns of names a kind
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
        id_column: Column that names each row. Predictions show it, and it is no feature unless `features` names it.
        target_scale: Regression targets are divided by this.
        target_transform: What a network learns of regression targets: `none`, `standardize`, `log` or `quantile`,
            fitted on training rows. Predictions and metrics stay in the unit of the table.
        max_categories: Different names that a categorical column may hold: each becomes a feature.
        cache: Keep a decoded copy of large files in the user's cache folder, for the next start.

    Raises:
        UserError: A file, columns or cells are wrong; lines are named, and all that is wrong is in one report.
    """
    spec, scale = TableSpec(**locals()), check_scale(target_scale)
    check_range("text_features", text_features, low=1, what="too few")
    tables = read_tables(spec)
    y, names = torch.from_numpy(tables.y), tables.features
    y = y / scale if tables.task == "regression" else y
    parts = [torch.from_numpy(encode(part.columns, names, tables.encodings)) for part in tables.parts.values()]
    x = parts[0] if len(parts) == 1 else torch.cat(parts)
    count = y.shape[1] if y.ndim > 1 else len(tables.classes) if tables.task == "multiclass" else 1
    own = [tables.encodings.get(name) for name in names]
    sizes = [size for kind in own for size in ([0] if kind is None else [kind.cardinality] * len(kind.parts))]
    about: dict[str, Any] = {"target_scale": scale, "cardinalities": tuple(sizes) if any(sizes) else ()}
    about |= {"transform": TargetTransform(target_transform)} if tables.task == "regression" else {}
    data = TensorData(
        x,
        y,
        DataInfo(tables.task, (x.shape[1],), count, tables.classes, **about),
        splits={name: torch.from_numpy(rows) for name, rows in tables.splits.items()},
        strata=y.to(torch.int64) if tables.task == "binary" else None,
        name=tables.parts["train"].path,
        imputer=_imputer(names, tables.encodings, tables.policy, add_indicator=add_indicator),
        notes=tables.notes,
        feature_names=[f"{name}{part}" for name, kind in zip(names, own) for part in (kind.parts if kind else [""])],
        groups=tables.groups,
        times=_cells(tables, time_column),
        weights=_cells(tables, weight_column),
        reader=_reader(tables, spec),
    )
    ids = _cells(tables, id_column)
    data.row_names, data.row_column = None if ids is None else ids.tolist(), id_column or ""
    return data


csv = table
"""The earlier name of `table`."""


def _cells(tables: Tables, name: str | None) -> np.ndarray | None:
    """Return the texts `(N,)` in a column of all tables that was read as names; None without a column."""
    columns = [table.names(name) for table in tables.parts.values()] if name is not None else []
    return (
        np.concatenate([np.array(one.kinds.to_pylist(), dtype=object)[one.codes] for one in columns])
        if columns
        else None
    )


def _reader(tables: Tables, spec: TableSpec) -> TableReader:
    """Return what reads new rows of such tables."""
    words = class_words(tables.parts["train"], spec.targets[0]) if tables.task == "binary" else []
    spelling = {"delimiter": spec.delimiter, "encoding": spec.encoding}
    plain = {name: [*kind.names] for name, kind in tables.encodings.items() if type(kind) is OneHot}
    return TableReader(
        tables.features,
        plain,
        [name for name in tables.features if tables.policy.filled(name)],
        spec.targets,
        words,
        spelling | {"decimal": spec.decimal, "thousands": spec.thousands},
        {name: kind.state_dict() for name, kind in tables.encodings.items() if name not in plain},
    )


def _imputer(
    names: list[str], encodings: Mapping[str, Encoding], policy: MissingPolicy, *, add_indicator: bool
) -> Imputer | None:
    """Make what fills in missing values; None where nothing is to be filled in."""
    found, first = list[Gaps](), 0
    for name in names:
        own = encodings.get(name)
        if policy.filled(name):
            constant = policy.constant(name) if policy.ways[name] == "constant" else 0.0
            if isinstance(own, Codes) and constant:
                constant = float(own.features([str(constant)])[0, 0])
            kinds = tuple(own.names) if type(own) is OneHot else None
            found.append(Gaps(name, policy.ways[name], first, kinds, constant, 1 if own is None else len(own.parts)))
        first += 1 if own is None else len(own.parts)
    if add_indicator and not found:
        raise UserError(
            "there is nothing to indicate where nothing is filled in",
            argument="add_indicator",
            received=add_indicator,
            fix="data.dataset.missing=median, or another way to fill values in",
        )
    return Imputer(found, add_indicator=add_indicator) if found else None
