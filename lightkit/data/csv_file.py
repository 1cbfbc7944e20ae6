"""Tables from files and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.data.csv_table import Tables, read_tables
from lightkit.data.impute import Gaps, Imputer
from lightkit.data.missing import MissingPolicy
from lightkit.data.table_columns import Table, class_words, read_table
from lightkit.data.table_encodings import Codes, Encoding, OneHot, encode
from lightkit.data.table_reader import TableReader
from lightkit.data.table_spec import TableSpec, table
from lightkit.data.targets import TargetTransform, check_scale
from lightkit.data.tensors import DataInfo, TensorData


def build_table(spec: TableSpec) -> TensorData:
    """Read a table; see `table`.

    Raises:
        UserError: A file, columns or cells are wrong; lines are named, and all that is wrong is in one report.
    """
    scale = check_scale(spec.target_scale)
    check_range("text_features", spec.text_features, low=1, what="too few")
    tables = read_tables(spec)
    y, names = torch.from_numpy(tables.y), tables.features
    y = y / scale if tables.task == "regression" else y
    parts = [torch.from_numpy(encode(part.columns, names, tables.encodings)) for part in tables.parts.values()]
    x = parts[0] if len(parts) == 1 else torch.cat(parts)
    count = y.shape[1] if y.ndim > 1 else len(tables.classes) if tables.task == "multiclass" else 1
    own = [tables.encodings.get(name) for name in names]
    widths = [len(kind.parts) if kind else 1 for kind in own]
    sizes = [len(kind.names) + 1 if isinstance(kind, Codes) else 0 for kind, n in zip(own, widths) for _ in range(n)]
    about: dict[str, Any] = {"target_scale": scale, "cardinalities": tuple(sizes) if any(sizes) else ()}
    about |= {"transform": TargetTransform(spec.target_transform)} if tables.task == "regression" else {}
    data = TensorData(
        x,
        y,
        DataInfo(tables.task, (x.shape[1],), count, tables.classes, **about),
        splits={name: torch.from_numpy(rows) for name, rows in tables.splits.items()},
        strata=y.to(torch.int64) if tables.task == "binary" else None,
        name=tables.parts["train"].path,
        imputer=_imputer(names, tables.encodings, tables.policy, add_indicator=spec.add_indicator),
        notes=tables.notes,
        feature_names=[f"{name}{part}" for name, kind in zip(names, own) for part in (kind.parts if kind else [""])],
        groups=_cells(tables, spec.group_column),
        times=_cells(tables, spec.time_column),
        weights=_cells(tables, spec.weight_column),
        reader=_reader(tables, spec),
    )
    again = [replace(part, columns={}) for part in tables.parts.values()]
    known = sorted(set.intersection(*({*part.source.names} for part in again)))
    data.column_readers = {name: partial(_column, again, spec.spelling, name) for name in known}
    ids = _cells(tables, spec.id_column)
    data.row_names, data.row_column = None if ids is None else ids.tolist(), spec.id_column or ""
    return data


csv = table
"""The earlier name of `table`."""


def _cells(tables: Tables, name: str | None) -> np.ndarray | None:
    """Return the texts `(N,)` in a column of all tables that was read as names; None without a column."""
    return None if name is None else np.concatenate([table.names(name).texts for table in tables.parts.values()])


def _column(parts: Sequence[Table], how: Any, name: str) -> np.ndarray:
    """Return the texts `(N,)` in any column of all tables, which are read again."""
    found = [(own.rows, read_table(own.source, numbers=[name], names=[name], spelling=how, wrong=[])) for own in parts]
    return np.concatenate([table.names(name).texts[np.searchsorted(table.rows, rows)] for rows, table in found])


def _reader(tables: Tables, spec: TableSpec) -> TableReader:
    """Return what reads new rows of such tables."""
    own = tables.task == "binary" and spec.like is None
    words = class_words(tables.parts["train"], spec.targets[0]) if own else []
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
        what, fix = (
            "there is nothing to indicate where nothing is filled in",
            "data.dataset.missing=median, or another way",
        )
        raise UserError(what, argument="add_indicator", received=add_indicator, fix=f"{fix} to fill values in")
    return Imputer(found, add_indicator=add_indicator) if found else None
