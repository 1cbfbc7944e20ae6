"""Rows and columns of a CSV file as arrays, with the line of everything that is wrong; nothing is done cell by cell.

Arrow's parser reads what it reads as Python's csv module does, which reads the rest. A column is one of numbers, or of
names by their place in a list.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow

from lightkit.common.csv_lines import CsvFile
from lightkit.common.errors import UserError
from lightkit.common.text import is_number

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""Cells that mean that there is no value, in lower case."""
_SPACE = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""What `str.strip` takes away."""
_PLAIN = r"^-?([0-9]{1,50}(\.[0-9]{0,50})?|\.[0-9]{1,50})([eE][+-]?[0-9]{1,2})?$"
"""Numbers that Arrow reads as Python does, all of them finite."""
_PADDED = r"^\s*0[0-9]{2,}\s*$"
"""Whole numbers with zeros before them, as ids and codes are written; days and months have two digits."""


def is_missing(cell: str) -> bool:
    """Tell whether a cell has no value, or one that nothing can be computed with, such as `inf`."""
    if cell.lower() in MISSING:
        return True
    return cell.lower().lstrip("+-")[:3] in ("inf", "nan") and is_number(cell) and not math.isfinite(float(cell))


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
        padded: First whole number that is written with zeros before it; empty where none is.
    """

    values: np.ndarray
    missing: np.ndarray
    text: np.ndarray
    padded: str = ""

    def take(self, rows: np.ndarray) -> NumberColumn:
        """Return the column at some rows."""
        return NumberColumn(self.values[rows], self.missing[rows], self.text[rows], self.padded)


@dataclass(frozen=True)
class NameColumn:
    """A column of names.

    Args:
        codes: `(N,)` place of each cell in `kinds`.
        kinds: Arrow array of all different cells; some may be in no row.
    """

    codes: np.ndarray
    kinds: Any

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


def join_numbers(pieces: Sequence[NumberColumn]) -> NumberColumn:
    """Join pieces of a column of numbers."""
    arrays = zip(*((piece.values, piece.missing, piece.text) for piece in pieces))
    values, missing, text = map(np.concatenate, arrays)
    return NumberColumn(values, missing, text, next((piece.padded for piece in pieces if piece.padded), ""))


def parse_names(cells: Any) -> Any:
    """Strip the cells of an Arrow array of strings and return it as a dictionary array."""
    return pc.utf8_trim(cells, characters=_SPACE).dictionary_encode()


def join_names(pieces: Sequence[Any]) -> NameColumn:
    """Join pieces of a column of names, which come from `parse_names`."""
    whole = pa.chunked_array(pieces).unify_dictionaries().combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    return NameColumn(_view(whole.indices, np.int32), whole.dictionary)


def parse_numbers(cells: Any) -> NumberColumn:
    """Read numbers in Arrow's array of strings as Python's `float` does, rounded to float32."""
    values, none = _cast(cells), np.zeros(len(cells), dtype=bool)
    if values is not None:
        return NumberColumn(values, none, none, _first_padded(cells, values))
    cells = pc.ascii_trim(cells, characters=" \t")
    missing = pc.is_in(pc.ascii_lower(cells), value_set=strings(sorted(MISSING)))
    values = _cast(cells, missing)
    if values is not None:
        return NumberColumn(values, _bools(missing), none, _first_padded(cells, values))
    return _parse_others(cells)


def _first_padded(cells: Any, values: np.ndarray) -> str:
    """Return the first cell of whole numbers that has zeros before it; empty where none has, or one has a fraction."""
    begin = pc.starts_with(pc.ascii_trim_whitespace(cells), pattern="0")
    if not _bools(begin).any() or (np.nan_to_num(values) % 1).any():
        return ""
    padded = cells.filter(pc.match_substring_regex(cells, _PADDED))
    return str(padded[0]).strip() if len(padded) else ""


def _parse_others(cells: Any) -> NumberColumn:
    """Read numbers some of which Arrow reads in another way than Python, or not at all."""
    other = pc.invert(pc.match_substring_regex(cells, _PLAIN))
    values = _cast(cells, other)
    assert values is not None, "what is left are plain numbers"
    others = cells.filter(other).dictionary_encode()
    kinds = [cell.strip() for cell in others.dictionary.to_pylist()]
    missing = np.array([is_missing(kind) for kind in kinds])
    text = np.array([not is_number(kind) for kind in kinds]) & ~missing
    numbers = [math.nan if unknown else float(kind) for kind, unknown in zip(kinds, missing | text, strict=True)]
    rows, codes, masks = _bools(other), _view(others.indices, np.int32), np.zeros((2, len(cells)), dtype=bool)
    values[rows], masks[:, rows] = _rounded(np.array(numbers))[codes], np.stack((missing, text))[:, codes]
    return NumberColumn(values, *masks)


def _cast(cells: Any, without: Any = None) -> np.ndarray | None:
    """Cast cells to float32, NaN where a mask leaves them out; None where one is not a finite number."""
    if without is not None:
        cells = pc.if_else(without, "0", cells)
    try:
        numbers = _view(pc.cast(cells, pa.float64()), np.float64)
    except pa.ArrowInvalid:
        return None
    if not np.isfinite(numbers).all():
        return None
    values = _rounded(numbers)
    if without is not None:
        values[_bools(without)] = np.nan
    return values


def _rounded(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def strings(cells: Sequence[str]) -> Any:
    """Make an Arrow array of strings without `pyarrow.array`, which imports pandas where it is installed."""
    parts = [cell.encode() for cell in cells]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(parts), pa.py_buffer(ends), pa.py_buffer(b"".join(parts)))


def _view(values: Any, kind: type[np.generic]) -> np.ndarray:
    """View the numbers of an Arrow array as NumPy's; its `to_numpy` imports pandas."""
    return np.frombuffer(values.buffers()[1], dtype=kind)[values.offset : values.offset + len(values)]


def _bools(mask: Any) -> np.ndarray:
    return _view(pc.cast(mask, pa.uint8()), np.bool_)


_BLOCK_BYTES, _BLOCK_ROWS = 2**22, 2**13
_WITHOUT_STATE = ("utf-8-sig", "iso8859-1", "cp1252", "ascii")
"""Encodings in which ASCII is written as itself, wherever it is."""


@dataclass(frozen=True)
class Table:
    """Columns of a CSV file.

    Args:
        file: The file.
        columns: Those that were read, by name.
        rows: `(N,)` number of each row among all rows of the file, from 0.
    """

    file: CsvFile
    columns: dict[str, NumberColumn | NameColumn]
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.file.path

    def without(self, rows: np.ndarray) -> Table:
        """Return the table less the rows of a mask `(N,)`."""
        kept = np.flatnonzero(~rows)
        columns = {name: column.take(kept) for name, column in self.columns.items()}
        return Table(self.file, columns, self.rows[kept])

    def names(self, name: str) -> NameColumn:
        """Return a column that was read as names."""
        column = self.columns[name]
        assert isinstance(column, NameColumn), "it was read as names"
        return column

    def numbers(self, name: str) -> NumberColumn:
        """Return a column as numbers."""
        column = self.columns[name]
        return column.numbers if isinstance(column, NameColumn) else column

    def cell(self, row: int, name: str) -> tuple[int, str]:
        """Return the line of a row in the file, from 1, and its cell in a column; reads the file again."""
        line, cells = self.file.row(int(self.rows[row]))
        return line, cells[name]


def read_table(
    file: CsvFile,
    *,
    numbers: Sequence[str],
    names: Sequence[str],
    spelling: Spelling = PLAIN,
    wrong: list[UserError] | None = None,
) -> Table:
    """Read columns of a CSV file.

    Args:
        file: The file.
        numbers: Columns of numbers; other cells are remembered.
        names: Columns of names.
        spelling: How numbers are written.
        wrong: Gets the error of lines with too few or too many cells, which are left out; None raises it.

    Raises:
        UserError: It cannot be read, or a line has too few or too many cells.
    """
    wanted = [*dict.fromkeys([*names, *numbers])]

    def read(blocks: Iterable[list[Any]]) -> dict[str, NumberColumn | NameColumn]:
        pieces: dict[str, list[Any]] = {name: [] for name in wanted}
        for block in blocks:
            for name, cells in zip(wanted, block, strict=True):
                cells = spelling.plain(cells) if name in numbers else cells
                pieces[name].append(parse_names(cells) if name in names else parse_numbers(cells))
        return {name: join_names(found) if name in names else join_numbers(found) for name, found in pieces.items()}

    try:
        columns = read(parse_plain(file, wanted))
    except NotPlainError:
        columns = read(parse_any(file, wanted, wrong))
    first = next(iter(columns.values()))
    return Table(file, columns, np.arange(len(first.codes if isinstance(first, NameColumn) else first.values)))


class NotPlainError(ValueError):
    """A file may hold what Arrow reads in another way than Python's csv module."""


def parse_plain(file: CsvFile, names: Sequence[str]) -> Iterator[list[Any]]:
    """Read a file with Arrow's parser, many times faster than `parse_any`.

    Args:
        file: The file.
        names: The columns to read.

    Yields:
        Arrow's string array of each column for some rows, cells as they are between delimiters and quotes.

    Raises:
        NotPlainError: `parse_any` has to read it, or to say what is wrong.
    """
    if not file.delimiter.isascii() or file.delimiter in ' "\r\n\0':
        raise NotPlainError(file.delimiter)
    columns = [str(i) for i in range(len(file.names))]  # the line of names is a row like any other
    chosen = [columns[file.names.index(name)] for name in names]
    types = dict.fromkeys(chosen, pa.string())
    header = True
    try:
        for block in _blocks(file):
            # Neither threads nor a stream: abandoned in the middle, those of Arrow can wait for themselves for ever.
            table = arrow.read_csv(
                pa.BufferReader(block),
                arrow.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=columns),
                arrow.ParseOptions(delimiter=file.delimiter, newlines_in_values=b'"' in block),
                arrow.ConvertOptions(check_utf8=False, column_types=types, include_columns=chosen),
            )
            (batch,) = table.to_batches()
            if header and [column[0].as_py().strip() for column in batch.columns] != [*names]:
                raise NotPlainError("other names of columns")
            if len(batch) > header:
                yield batch.slice(int(header)).columns
            header = False
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise NotPlainError(str(error)) from error


def parse_any(file: CsvFile, names: Sequence[str], wrong: list[UserError] | None = None) -> Iterator[list[Any]]:
    """Read a file as `parse_plain` does, with Python's csv module; see `read_table` for `wrong`.

    Yields:
        Arrow's string array of each column for some rows, cells stripped.

    Raises:
        UserError: It cannot be read, or a line has too few or too many cells.
    """
    places = [file.names.index(name) for name in names]
    rows = file.rows(wrong)
    while block := [cells for _, cells in islice(rows, _BLOCK_ROWS)]:
        yield [strings([cells[place] for cells in block]) for place in places]


def _blocks(file: CsvFile) -> Iterator[bytes]:
    """Yield the file as UTF-8 in pieces of whole rows.

    Raises:
        NotPlainError: A row is longer than a block, or something is in it that Arrow reads in another way.
    """
    rest = b""
    for text in chain(_texts(file), [None]):
        whole = rest + (text or b"")
        end = len(whole) if text is None else _end_of_rows(whole)
        block, rest = whole[:end], whole[end:]
        if len(rest) > _BLOCK_BYTES or b"\0" in block:  # some versions of the csv module refuse NUL
            raise NotPlainError("a long row, or NUL")
        _check_quotes(block, file.delimiter)
        if block.lstrip(b"\r\n"):
            yield block


def _texts(file: CsvFile) -> Iterator[bytes]:
    """Yield the file as UTF-8, piece by piece."""
    decoder, begun = codecs.getincrementaldecoder(file.codec)(), False
    with file.stream() as stream:
        while raw := stream.read(_BLOCK_BYTES):
            same = begun and file.codec in _WITHOUT_STATE and raw.isascii() and not decoder.getstate()[0]
            yield raw if same else decoder.decode(raw).encode()
            begun = True
        yield decoder.decode(b"", final=True).encode()


def _end_of_rows(text: bytes) -> int:
    """Find the end of the last whole row, given that quotes stand around cells only."""
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    letters = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((letters == ord("\n")) | (letters == ord("\r")))
    outside = ends[np.searchsorted(np.flatnonzero(letters == ord('"')), ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _check_quotes(block: bytes, delimiter: str) -> None:
    """Refuse a block in which quotes stand elsewhere than around cells, or doubled in them.

    Every second quote then closes a cell, or is the first of two for one. Arrow does not skip spaces before a quote.
    """
    if b'"' not in block:
        return
    letters = np.frombuffer(b"\n" + block + b"\n", dtype=np.uint8)
    quotes = np.flatnonzero(letters == ord('"'))
    opening, closing = quotes[::2], quotes[1::2]
    if len(opening) != len(closing):
        raise NotPlainError("a quote is left open")
    edges = np.zeros(256, dtype=bool)
    edges[[ord("\n"), ord("\r"), ord(delimiter)]] = True
    doubled = closing[:-1] + 1 == opening[1:]
    opens, closes = edges[letters[opening - 1]], edges[letters[closing + 1]]
    if not (opens[0] and closes[-1] and (opens[1:] | doubled).all() and (closes[:-1] | doubled).all()):
        raise NotPlainError("a quote within a cell, or behind a space")
