"""New rows of a table for a trained model, by the names of their columns.

Shapes: N rows, F features.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightkit.common.errors import UserError
from lightkit.common.text import counted, is_missing
from lightkit.data.class_folders import SUFFIXES
from lightkit.data.csv_columns import (
    NameColumn,
    Spelling,
    is_text,
    join_names,
    number_column,
    parse_names,
    strings,
    texts,
)
from lightkit.data.csv_reader import RowBlock
from lightkit.data.reader import Faults, NewRows, Reader, called
from lightkit.data.table_encodings import ENCODINGS, Encoding, OneHot, encode
from lightkit.data.table_sources import EXPECTED, TableSource, frame_source, open_table

_NAMED = 50
_SPELLING = ("delimiter", "encoding", "decimal", "thousands")


@dataclass(frozen=True)
class TableReader(Reader):
    """Reads tables by the names of their columns: files, folders of files, data frames of pandas, polars and Arrow.

    Args:
        features: Columns that the model looks at, in order.
        kinds: Values of each categorical column, one 0/1 input each.
        filled: Columns whose missing values the run fills in.
        targets: Columns that it predicts.
        words: Both values of a binary target, the one that stands for 0 first; empty where they are 0 and 1.
        spelling: How files are written: `delimiter`, `encoding`, `decimal`, `thousands`.
        others: How columns are encoded that are neither numbers nor among `kinds`, see `Encoding.state_dict`.
    """

    features: Sequence[str]
    kinds: Mapping[str, list[str]] = field(default_factory=dict)
    filled: Sequence[str] = ()
    targets: Sequence[str] = ()
    words: Sequence[str] = ()
    spelling: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kind = "table"

    @cached_property
    def encodings(self) -> dict[str, Encoding]:
        """Return the encoding of each column that holds no numbers, by name."""
        found: dict[str, Encoding] = {name: OneHot(names) for name, names in self.kinds.items()}
        for name, state in self.others.items():
            found[name] = ENCODINGS[state["kind"]](**{key: value for key, value in state.items() if key != "kind"})
        return found

    def spelt(self, settings: Mapping[str, Any]) -> TableReader:
        """Return a reader of files that are written as these settings of a data set say."""
        return replace(self, spelling={**self.spelling, **{n: settings[n] for n in _SPELLING if n in settings}})

    def read(self, given: Any, most: int, faults: Faults) -> Iterator[NewRows]:
        """Yield the rows of a table; see `Reader.read`."""
        source = self._source(given)
        lacking = [name for name in self.features if name not in source.names]
        if lacking:
            shown = ", ".join(lacking[:_NAMED]) + (f", … ({len(lacking)} in all)" if len(lacking) > _NAMED else "")
            what = f"{source.label} lacks {counted(len(lacking), 'column')} that the run predicts from: {shown}"
            raise UserError(what, argument="", received=shown, choices=source.names, family="data-setting")
        for block in source.blocks(source.names):
            yield from self._rows(block, source, faults)

    def _source(self, given: Any) -> TableSource:
        """Open what was given."""
        what = "this run predicts from tables"
        if not isinstance(given, (str, Path)):
            if isinstance(given, (list, tuple)) and len(self.features) == 1:
                return frame_source({self.features[0]: given}, "")
            if not hasattr(type(given), "columns"):
                expected = "a data frame, the path of a file with its columns, or an array of numbers"
                raise UserError(what, argument="", expected=expected, received=called(given))
            return frame_source(given, "")
        path = Path(given).expanduser()
        if path.suffix.lower() in SUFFIXES:
            expected = f"{EXPECTED}; or - for the standard input"
            raise UserError(what, argument="", expected=expected, received=str(given), family="data-setting")
        if str(given) != "-" and not path.exists() and not has_magic(str(given)):
            raise UserError("there is no such file", argument="", received=str(given), family="data-not-found")
        how = {name: self.spelling[name] for name in ("delimiter", "encoding") if name in self.spelling}
        content = sys.stdin.buffer.read() if str(given) == "-" else None
        try:
            return open_table("standard input" if content is not None else given, argument="", content=content, **how)
        except UserError as error:
            error.argument = ""  # none of a data set: what was given is at fault
            raise

    def _rows(self, block: RowBlock, source: TableSource, faults: Faults) -> Iterator[NewRows]:
        """Yield the rows of a block that can be used."""
        spelling = Spelling(self.spelling.get("decimal", "."), self.spelling.get("thousands", ""))
        columns = dict[str, Any]()
        for name in self.features:
            encoding = self.encodings.get(name)
            if encoding is None:
                columns[name] = number_column(block.columns[name], spelling)
                continue
            known = encoding.names if isinstance(encoding, OneHot) else ()
            columns[name] = _name_column(block.columns[name], known)
            for text in columns[name].found() if known else ():
                if text not in known and not is_missing(text):
                    faults.notes[f"column {name!r}: {text!r} is not in the training data, and counts as none"] = None
        wrong = self._wrong(block, columns)
        places = source.places([int(block.numbers[row]) for row in wrong]) if wrong else []
        odd = [
            (f"{block.file.path}, line {line}", f"{cells} cells, not {len(source.names)}")
            for line, cells, _ in block.uneven
            if block.file
        ]
        faults.take([*odd, *zip(places, wrong.values(), strict=True)])
        fine = np.array([row for row in range(len(block.numbers)) if row not in wrong], dtype=np.int64)
        if len(fine):
            inputs = encode(
                {name: column.take(fine) for name, column in columns.items()}, self.features, self.encodings
            )
            kept = {name: _cells(block.columns[name], fine) for name in source.names if name not in self.features}
            yield NewRows(block.numbers[fine].tolist(), torch.from_numpy(inputs), kept)

    def _wrong(self, block: RowBlock, columns: Mapping[str, Any]) -> dict[int, str]:
        """Return what is wrong with the rows of a block that cannot be used, by their places in it."""
        wrong = dict[int, list[str]]()
        for name, column in columns.items():
            encoding = self.encodings.get(name)
            if encoding is not None:
                bad, why = np.flatnonzero(encoding.wrong(column)).tolist(), f"no {encoding.unit}"
            else:
                bad = np.flatnonzero(column.text | np.isinf(column.values)).tolist()
            for row in bad:
                why = why if encoding else "no number" if column.text[row] else "too large a number"
                wrong.setdefault(row, []).append(f"column {name!r} holds {str(block.columns[name][row])!r}, {why}")
            for row in np.flatnonzero(column.missing).tolist() if name not in self.filled else ():
                wrong.setdefault(row, []).append(f"column {name!r} has no value")
        return {row: ", ".join(wrong[row]) for row in sorted(wrong)}


def _cells(cells: Any, rows: np.ndarray) -> list[Any]:
    found = cells.to_pylist()
    return [found[row].strip() if isinstance(found[row], str) else found[row] for row in rows.tolist()]


def _name_column(cells: Any, known: Sequence[str]) -> NameColumn:
    """Return a column of Arrow as names; what is no text in the way in which a known name is written: 1 may be 1.0."""
    found = join_names([parse_names(texts(cells))])
    if is_text(cells):
        return found
    spelt = [(text, text.title(), text.upper(), f"{text}.0") for text in found.kinds.to_pylist()]
    return NameColumn(found.codes, strings([next((one for one in ways if one in known), ways[0]) for ways in spelt]))
