"""Columns of a table as arrays: numbers, or names by their place in a list; nothing is done cell by cell."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightkit.common.text import is_missing, is_number

_SPACE = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What `str.strip` takes away."""
_PLAIN = r"^-?([0-9]{1,50}(\.[0-9]{0,50})?|\.[0-9]{1,50})([eE][+-]?[0-9]{1,2})?$"
"""Numbers that Arrow reads as Python does, all of them finite."""
_PADDED = r"^\s*0[0-9]{2,}\s*$"
"""Whole numbers with zeros before them, as ids and codes are written; days and months have two digits."""
_EXACT, _FEW = 2**24, 0.01
"""The whole number up to which float32 has all, and the share of neighbours that may become one."""


@dataclass(frozen=True)
class Spelling:
    """How numbers are written.

    Args:
        decimal: What stands before the fraction, `.` or `,`.
        thousands: What stands between groups of three digits; empty for nothing.
    """

    decimal: str = "."
    thousands: str = ""

    @property
    def pattern(self) -> str:
        """Return the regular expression of a number."""
        point, mark = re.escape(self.decimal), re.escape(self.thousands)
        whole = f"([0-9]{{1,3}}({mark}[0-9]{{3}})+|[0-9]+)" if mark else "[0-9]+"
        return rf"^\s*[+-]?({whole}({point}[0-9]*)?|{point}[0-9]+)([eE][+-]?[0-9]{{1,3}})?\s*$"

    def plain(self, cells: Any) -> Any:
        """Write the numbers of an Arrow array of strings as Python does; a point in others makes no number of them."""
        if self == PLAIN:
            return cells
        numbers = pc.match_substring_regex(cells, self.pattern)
        found = pc.replace_substring(cells, self.thousands, "") if self.thousands else cells
        found = pc.replace_substring(found, ",", ".") if self.decimal == "," else found
        others = pc.replace_substring(cells, ".", _NO_POINT) if self.decimal == "," else cells
        return pc.if_else(numbers, found, others)


PLAIN = Spelling()
"""As Python writes them."""
_NO_POINT = "\u00b7"


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers.

    Args:
        values: `(N,)` float32, NaN where there is none.
        missing: `(N,)`: whether a row has no value.
        text: `(N,)`: whether it holds something else than a number.
        doubtful: A cell that speaks against numbers: one with zeros before it, or a whole one that float32
            takes for its neighbour; empty where none does.
    """

    values: np.ndarray
    missing: np.ndarray
    text: np.ndarray
    doubtful: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray) -> NumberColumn:
        """Return the column at some rows."""
        return NumberColumn(self.values[rows], self.missing[rows], self.text[rows], self.doubtful)


@dataclass(frozen=True)
class NameColumn:
    """A column of names.

    Args:
        codes: `(N,)` place of each cell in `kinds`.
        kinds: Arrow array of all different cells; some may be in no row.
    """

    codes: np.ndarray
    kinds: Any

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def as_kinds(self) -> NumberColumn:
        """The kinds as numbers."""
        return parse_numbers(self.kinds)

    @property
    def missing(self) -> np.ndarray:
        """`(N,)`: whether a row has no value."""
        return self.as_kinds.missing[self.codes]

    @property
    def numbers(self) -> NumberColumn:
        """The column as numbers."""
        return self.as_kinds.take(self.codes)

    @property
    def texts(self) -> np.ndarray:
        """The cells as texts, `(N,)`."""
        return np.array(self.kinds.to_pylist(), dtype=object)[self.codes]

    @property
    def used(self) -> np.ndarray:
        """Codes of the kinds that are in some row, rising."""
        return np.flatnonzero(np.bincount(self.codes, minlength=len(self.kinds)))

    def found(self) -> dict[str, int]:
        """Return the kinds that are in some row, with their codes."""
        codes = self.used
        places = pa.Array.from_buffers(pa.int64(), len(codes), [None, pa.py_buffer(codes.astype(np.int64))])
        return dict(zip(self.kinds.take(places).to_pylist(), codes.tolist(), strict=True))

    def take(self, rows: np.ndarray) -> NameColumn:
        """Return the column at some rows."""
        return NameColumn(self.codes[rows], self.kinds)

    def numbered(self, numbers: dict[str, int]) -> np.ndarray:
        """Return the `(N,)` int64 number of each cell, by its name; -1 for names that have none."""
        by_code = np.full(len(self.kinds), -1, dtype=np.int64)
        for name, code in self.found().items():
            by_code[code] = numbers.get(name, -1)
        return by_code[self.codes]


def join(pieces: Sequence[Any]) -> NumberColumn | NameColumn:
    """Join pieces of a column: of numbers, or of names from `parse_names`."""
    if not isinstance(pieces[0], NumberColumn):
        return join_names(pieces)
    values, missing, text = map(np.concatenate, zip(*((piece.values, piece.missing, piece.text) for piece in pieces)))
    return NumberColumn(values, missing, text, next((piece.doubtful for piece in pieces if piece.doubtful), ""))


def parse_names(cells: Any) -> Any:
    """Strip the cells of an Arrow array of strings and return it as a dictionary array."""
    return pc.utf8_trim(cells, characters=_SPACE).dictionary_encode()


def join_names(pieces: Sequence[Any]) -> NameColumn:
    """Join pieces of a column of names, which come from `parse_names`."""
    joined = pa.chunked_array(pieces).unify_dictionaries().combine_chunks()
    joined = joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
    return NameColumn(view(joined.indices, np.int32), joined.dictionary)


def parse_numbers(cells: Any) -> NumberColumn:
    """Read numbers in Arrow's array of strings as Python's `float` does, rounded to float32."""
    values, masks = _cast(cells), np.zeros((2, len(cells)), dtype=bool)
    if values is None:
        cells = pc.ascii_trim(cells, characters=" \t")
        other = pc.invert(pc.match_substring_regex(cells, _PLAIN))
        values = _cast(cells, other)
        assert values is not None, "what is left are plain numbers"
        others = cells.filter(other).dictionary_encode()
        kinds = [cell.strip() for cell in others.dictionary.to_pylist()]
        missing = np.array([is_missing(kind) for kind in kinds], dtype=bool)
        text = np.array([not is_number(kind) for kind in kinds], dtype=bool) & ~missing
        numbers = [math.nan if unknown else float(kind) for kind, unknown in zip(kinds, missing | text, strict=True)]
        rows, codes = _bools(other), view(others.indices, np.int32)
        values[rows], masks[:, rows] = np.array(numbers)[codes], np.stack((missing, text))[:, codes]
    return NumberColumn(_rounded(values), masks[0], masks[1], _doubtful(cells, values))


def _doubtful(cells: Any, values: np.ndarray) -> str:
    """Return a cell that speaks against numbers, see `NumberColumn`; empty where none does, or one has a fraction.

    Args:
        cells: The cells.
        values: What is in them, float64.
    """
    if (np.abs(values) > _EXACT).any():
        less, differ = _rounded(values), _bools(pc.not_equal(cells.slice(1), cells.slice(0, len(cells) - 1)))
        like = np.flatnonzero(differ & (less[1:] == less[:-1]))
        if len(like) > _FEW * len(values):
            return str(cells[int(like[0])]).strip()
    if not is_text(cells):
        return ""
    begin = pc.starts_with(pc.ascii_trim_whitespace(cells), pattern="0")
    if not _bools(begin).any() or (np.nan_to_num(values) % 1).any():
        return ""
    padded = cells.filter(pc.match_substring_regex(cells, _PADDED))
    return str(padded[0]).strip() if len(padded) else ""


def _cast(cells: Any, without: Any = None) -> np.ndarray | None:
    """Cast cells to float64, NaN where a mask leaves them out; None where one is not a finite number."""
    if without is not None:
        cells = pc.if_else(without, "0", cells)
    try:
        numbers = view(pc.cast(cells, pa.float64()), np.float64)
    except pa.ArrowInvalid:
        return None
    if not np.isfinite(numbers).all():
        return None
    return numbers if without is None else np.where(_bools(without), np.nan, numbers)


def _rounded(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def number_column(cells: Any, spelling: Spelling = PLAIN) -> NumberColumn:
    """Return a column of Arrow as numbers; texts are read as those of a CSV file, no finite number is a missing one."""
    kind = cells.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        cells = pc.cast(cells, pa.uint8()) if pa.types.is_boolean(kind) else cells
        return parse_numbers(texts(cells, spelling))
    wide = pc.fill_null(pc.cast(cells, pa.float64(), safe=False), pa.scalar(math.nan, pa.float64()))
    numbers = view(wide, np.float64)
    missing = ~np.isfinite(numbers)
    values = np.where(missing, np.nan, numbers)
    return NumberColumn(_rounded(values), missing, np.zeros(len(values), dtype=bool), _doubtful(cells, values))


def texts(cells: Any, spelling: Spelling = PLAIN) -> Any:
    """Write the cells of an Arrow array, of which missing ones are empty; numbers keep all their digits."""
    if cells.type == pa.string() and not cells.null_count:
        return spelling.plain(cells)
    try:
        # A text of Python's would import pandas.
        found = pc.coalesce(pc.cast(cells, pa.string()), strings([""])[0])
    except pa.ArrowNotImplementedError:  # lists and the like
        return strings(["" if cell is None else str(cell) for cell in cells.to_pylist()])
    return spelling.plain(found) if is_text(cells) else found


def is_text(cells: Any) -> bool:
    """Tell whether an Arrow array holds texts, of any kind, also as categories."""
    return "string" in str(cells.type)


def strings(cells: Sequence[str]) -> Any:
    """Make an Arrow array of strings without `pyarrow.array`, which imports pandas where it is installed."""
    parts = [cell.encode() for cell in cells]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(parts), pa.py_buffer(ends), pa.py_buffer(b"".join(parts)))


def array(values: np.ndarray, kind: Any) -> Any:
    """View numbers as an Arrow array of a type."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def whole(cells: Any) -> Any:
    """Return an Arrow array of one that may have chunks."""
    return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells


def view(values: Any, kind: type[np.generic]) -> np.ndarray:
    """View the numbers of an Arrow array as NumPy's; its `to_numpy` imports pandas."""
    return np.frombuffer(values.buffers()[1], dtype=kind)[values.offset : values.offset + len(values)]


def _bools(mask: Any) -> np.ndarray:
    return view(pc.cast(mask, pa.uint8()), np.bool_)
