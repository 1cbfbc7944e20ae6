"""New rows of a table for a trained model, by the names of their columns.

Shapes: N rows, F features.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.csv_lines import open_csv
from lightkit.common.errors import UserError
from lightkit.common.text import counted
from lightkit.data.class_folders import SUFFIXES
from lightkit.data.csv_columns import NameColumn, NumberColumn, Spelling, is_missing
from lightkit.data.reader import Faults, NewRows, Reader, called
from lightkit.data.table_sources import (
    TableBlock,
    TableSource,
    csv_source,
    frame_source,
    name_column,
    number_column,
    parquet_source,
)

_SHOWN, _NAMED = 10, 50
_SPELLING = ("delimiter", "encoding", "decimal", "thousands")
_PARQUET = (".parquet", ".pq")
_NO_TABLES = (*SUFFIXES, *(f".{ending}" for ending in ("xlsx", "xls", "zip", "gz", "json", "npy", "npz")))


@dataclass(frozen=True)
class TableReader(Reader):
    """Reads tables by the names of their columns: CSV and Parquet files, data frames of pandas, polars and Arrow.

    Args:
        features: Columns that the model looks at, in order.
        kinds: Values of each categorical column, one 0/1 input each.
        filled: Columns whose missing values the run fills in.
        targets: Columns that it predicts.
        words: Both values of a binary target, the one that stands for 0 first; empty where they are 0 and 1.
        spelling: How files are written: `delimiter`, `encoding`, `decimal`, `thousands`.
    """

    features: Sequence[str]
    kinds: Mapping[str, list[str]] = field(default_factory=dict)
    filled: Sequence[str] = ()
    targets: Sequence[str] = ()
    words: Sequence[str] = ()
    spelling: Mapping[str, str] = field(default_factory=dict)
    kind = "table"

    def spelt(self, settings: Mapping[str, Any]) -> TableReader:
        """Return a reader of files that are written as these settings of a data set say."""
        return replace(self, spelling={**self.spelling, **{n: settings[n] for n in _SPELLING if n in settings}})

    def read(self, given: Any, most: int, faults: Faults) -> Iterator[NewRows]:
        """Yield the rows of a table; see `Reader.read`."""
        source = self._source(given, most)
        lacking = [name for name in self.features if name not in source.names]
        if lacking:
            shown = ", ".join(lacking[:_NAMED]) + (f", … ({len(lacking)} in all)" if len(lacking) > _NAMED else "")
            what = f"{source.label} lacks {counted(len(lacking), 'column')} that the run predicts from: {shown}"
            raise UserError(what, argument="", received=shown, choices=source.names, family="data-setting")
        for block in source.blocks():
            yield from self._rows(block, source, faults)

    def _source(self, given: Any, most: int) -> TableSource:
        """Open what was given."""
        if not isinstance(given, (str, Path)):
            source = frame_source(given)
            if source is None:
                expected = "a data frame, the path of a .csv or .parquet file, or an array of numbers"
                raise UserError("this run predicts from tables", argument="", expected=expected, received=called(given))
            return source
        path = Path(given).expanduser()
        if path.is_dir() or path.suffix.lower() in _NO_TABLES:
            expected = "a .csv or .parquet file with its columns, or - for the standard input"
            what = "this run predicts from tables"
            raise UserError(what, argument="", expected=expected, received=str(given), family="data-setting")
        if str(given) != "-" and not path.exists():
            raise UserError("there is no such file", argument="", received=str(given), family="data-not-found")
        if path.suffix.lower() in _PARQUET:
            return parquet_source(path, most)
        how = {"delimiter": ",", "encoding": "utf-8", **self.spelling}
        how = {"delimiter": how["delimiter"], "encoding": how["encoding"], "argument": ""}
        content = sys.stdin.buffer.read() if str(given) == "-" else None
        try:
            return csv_source(open_csv("standard input" if content is not None else path, content=content, **how))
        except UserError as error:
            error.argument = ""  # none of a data set: what was given is at fault
            raise

    def _rows(self, block: TableBlock, source: TableSource, faults: Faults) -> Iterator[NewRows]:
        """Yield the rows of a block that can be used."""
        spelling = Spelling(self.spelling.get("decimal", "."), self.spelling.get("thousands", ""))
        columns = dict[str, Any]()
        for name in self.features:
            kinds = self.kinds.get(name)
            if kinds is None:
                columns[name] = number_column(block.columns[name], spelling)
                continue
            columns[name] = name_column(block.columns[name], kinds)
            strange = [text for text in columns[name].found() if text not in kinds and not is_missing(text)]
            faults.notes |= {
                f"column {name!r}: {text!r} is not in the training data, and counts as none": None for text in strange
            }
        wrong = self._wrong(block, columns)
        places = source.places([int(block.numbers[row]) for row in wrong]) if wrong else []
        faults.take([*block.uneven, *zip(places, wrong.values(), strict=True)])
        fine = np.array([row for row in range(len(block.numbers)) if row not in wrong], dtype=np.int64)
        if len(fine):
            inputs = encode({name: column.take(fine) for name, column in columns.items()}, self.features, self.kinds)
            kept = {name: _cells(block.columns[name], fine) for name in source.names if name not in self.features}
            yield NewRows(block.numbers[fine].tolist(), inputs, kept)

    def _wrong(self, block: TableBlock, columns: Mapping[str, Any]) -> dict[int, str]:
        """Return what is wrong with the rows of a block that cannot be used, by their places in it."""
        wrong = dict[int, list[str]]()
        for name, column in columns.items():
            bad = () if name in self.kinds else np.flatnonzero(column.text | np.isinf(column.values)).tolist()
            for row in bad:
                why = "no number" if column.text[row] else "too large a number"
                wrong.setdefault(row, []).append(f"column {name!r} holds {str(block.columns[name][row])!r}, {why}")
            for row in np.flatnonzero(column.missing).tolist() if name not in self.filled else ():
                wrong.setdefault(row, []).append(f"column {name!r} has no value")
        return {row: ", ".join(wrong[row]) for row in sorted(wrong)}


def _cells(cells: Any, rows: np.ndarray) -> list[Any]:
    found = cells.to_pylist()
    return [found[row].strip() if isinstance(found[row], str) else found[row] for row in rows.tolist()]


def encode(
    columns: Mapping[str, NumberColumn | NameColumn], names: Sequence[str], kinds: Mapping[str, Sequence[str]]
) -> Tensor:
    """Make features `(N, F)` of columns, those of names one-hot, in the order of the columns; NaN for missing values.

    Args:
        columns: The columns by name.
        names: Which of them, in order.
        kinds: Values of each column of names, in order; another value is none of them.
    """
    widths = [len(kinds[name]) if name in kinds else 1 for name in names]
    first = next(iter(columns.values()))
    x = torch.empty(len(first.codes if isinstance(first, NameColumn) else first.values), sum(widths))
    for name, features in zip(names, x.split(widths, 1), strict=True):
        column = columns[name]
        if name not in kinds:
            numbers = column.numbers if isinstance(column, NameColumn) else column
            features[:, 0] = torch.from_numpy(numbers.values)
            continue
        assert isinstance(column, NameColumn), "it was read as names"
        number = torch.from_numpy(column.numbered({kind: i for i, kind in enumerate(kinds[name])}))
        known = (number >= 0).nonzero()[:, 0]
        features.zero_()
        features[known, number[known]] = 1.0
        features[torch.from_numpy(column.missing)] = torch.nan
    return x
