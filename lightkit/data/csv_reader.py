"""Rows and columns of a CSV file as arrays, with the line of everything that is wrong.

Arrow's parser reads what it reads as Python's csv module does, which reads the rest.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow

from lightkit.common.csv_lines import CsvFile
from lightkit.common.errors import UserError
from lightkit.common.text import is_number
from lightkit.data.csv_columns import (
    PLAIN,
    NameColumn,
    NumberColumn,
    Spelling,
    join_names,
    join_numbers,
    parse_names,
    parse_numbers,
    strings,
)

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


def class_words(table: Table, target: str) -> list[str]:
    """Return the classes of a target as they are written, in order."""
    found = table.names(target).found()
    return sorted(found, key=lambda name: (float(name), name)) if all(map(is_number, found)) else sorted(found)


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
