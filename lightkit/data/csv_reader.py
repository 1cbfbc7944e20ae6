"""Rows of a CSV file as Arrow's arrays of strings, block by block.

Arrow's parser reads what it reads as Python's csv module does, which reads the rest.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow

from lightkit.common.csv_lines import CsvFile
from lightkit.data.csv_columns import strings

_BLOCK_BYTES, _BLOCK_ROWS = 2**22, 2**13
_WITHOUT_STATE = ("utf-8-sig", "iso8859-1", "cp1252", "ascii")
"""Encodings in which ASCII is written as itself, wherever it is."""


class RowBlock(NamedTuple):
    """Some rows of a table."""

    numbers: np.ndarray
    """`(N,)`: the place of each row in the table, from 0."""
    columns: dict[str, Any]
    """Arrow arrays by name; of a CSV file strings."""
    size: int
    """Number of rows, with those that are left out."""
    uneven: tuple[tuple[int, int, str], ...] = ()
    """Rows with too few or too many cells, which are left out: line, cells, and what it begins with."""
    file: CsvFile | None = None
    """The file that these are in."""


def csv_blocks(file: CsvFile, names: Sequence[str]) -> Iterator[RowBlock]:
    """Read columns of a CSV file by Arrow's parser, and from where that cannot go on by Python's.

    Raises:
        UserError: It cannot be read.
    """
    done = 0
    try:
        for columns in parse_plain(file, names):
            size = len(columns[0])
            yield RowBlock(np.arange(done, done + size), dict(zip(names, columns, strict=True)), size)
            done += size
    except NotPlainError:
        yield from parse_any(file, names, done)


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


def parse_any(file: CsvFile, names: Sequence[str], done: int = 0) -> Iterator[RowBlock]:
    """Read a file as `csv_blocks` does, with Python's csv module.

    Args:
        file: The file.
        names: The columns to read.
        done: Rows that are read already.

    Raises:
        UserError: It cannot be read.
    """
    places, width = [file.names.index(name) for name in names], len(file.names)
    rows = islice(enumerate(islice(file.lines(), 1, None)), done, None)
    while some := list(islice(rows, _BLOCK_ROWS)):
        even = [(number, row) for number, (_, row) in some if len(row) == width]
        cells = {name: strings([row[at].strip() for _, row in even]) for name, at in zip(names, places, strict=True)}
        odd = [(line, len(row), file.delimiter.join(row)[:80]) for _, (line, row) in some if len(row) != width]
        yield RowBlock(np.array([number for number, _ in even], dtype=np.int64), cells, len(some), tuple(odd), file)


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
