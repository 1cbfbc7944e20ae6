"""Where new rows of a table come from: CSV files, Parquet files and data frames, by blocks, as columns of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightkit.common.csv_lines import CsvFile
from lightkit.common.errors import UserError
from lightkit.data.csv_columns import (
    NameColumn,
    NumberColumn,
    Spelling,
    join_names,
    parse_names,
    parse_numbers,
    strings,
)
from lightkit.data.csv_reader import NotPlainError, parse_plain

_BLOCK_ROWS = 2**13


class TableBlock(NamedTuple):
    """Some rows of a table."""

    numbers: np.ndarray
    """`(N,)`: the place of each row in the table, from 0."""
    columns: dict[str, Any]
    """Arrow arrays by name; of a CSV file strings."""
    uneven: list[tuple[str, str]] = []
    """The places of rows with too few or too many cells, which are left out, and what is wrong with them."""


@dataclass(frozen=True)
class TableSource:
    """A table that is read block by block.

    Args:
        label: How messages call it.
        names: Names of its columns.
        blocks: Reads it from the beginning.
        places: Tells where rows stand, by their numbers.
    """

    label: str
    names: tuple[str, ...]
    blocks: Callable[[], Iterator[TableBlock]]
    places: Callable[[Sequence[int]], list[str]]


def csv_source(file: CsvFile) -> TableSource:
    """Return the rows of a CSV file; messages name its lines."""

    def places(numbers: Sequence[int]) -> list[str]:
        wanted = set(numbers)
        lines = {i: line for i, (line, _) in enumerate(_rows(file)) if i in wanted}
        return [f"{file.path}, line {lines.get(number, '?')}" for number in numbers]

    return TableSource(str(file.path), file.names, lambda: _csv_blocks(file), places)


def parquet_source(path: Path, most: int) -> TableSource:
    """Return the rows of a Parquet file, at most so many at once.

    Raises:
        UserError: It cannot be read.
    """
    from pyarrow import parquet

    facts: dict[str, Any] = {"received": str(path), "expected": "a Parquet file", "family": "data-unreadable"}
    try:
        file = parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"the file cannot be read: {str(error).splitlines()[0]}", argument="", **facts) from error

    def batches() -> Iterator[Any]:
        try:
            yield from file.iter_batches(batch_size=most)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"the file cannot be read: {error}", argument="", **facts) from error

    return _source(str(path), file.schema_arrow.names, batches)


def frame_source(frame: Any) -> TableSource | None:
    """Return the rows of a data frame of pandas, polars or Arrow, or of a mapping of columns; None for other things."""
    if hasattr(frame, "to_arrow"):
        frame = frame.to_arrow()
    if isinstance(frame, pa.Table):
        named = [(name, column.combine_chunks()) for name, column in zip(frame.column_names, frame.columns)]
    elif hasattr(frame, "columns") and hasattr(frame, "iloc"):
        named = [(str(name), _array(frame.iloc[:, i])) for i, name in enumerate(frame.columns)]
    else:
        return None
    names, columns = [name for name, _ in named], [column for _, column in named]
    size = len(columns[0]) if columns else 0
    return _source("the table", names, lambda: [dict(zip(names, columns))] if size else [])


def _source(label: str, names: Sequence[str], batches: Callable[[], Iterable[Any]]) -> TableSource:
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise UserError(f"{label} names a column twice", argument="", received=twice[0], family="data-unreadable")

    def blocks() -> Iterator[TableBlock]:
        first = 0
        for batch in batches():
            columns = batch if isinstance(batch, dict) else dict(zip(names, batch.columns))
            size = len(next(iter(columns.values())))
            yield TableBlock(np.arange(first, first + size), columns)
            first += size

    return TableSource(label, tuple(names), blocks, lambda numbers: [f"{label}, row {number}" for number in numbers])


def _array(series: Any) -> Any:
    """Make an Arrow array of a column of pandas; of one that holds all kinds of things their texts."""
    try:
        found = pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError):
        there = series.notna()
        found = pa.array([str(cell) if known else None for cell, known in zip(series, there)], pa.string())
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _rows(file: CsvFile) -> Iterator[tuple[int, list[str]]]:
    """Yield line and cells of each row, those with too few or too many cells, too."""
    return islice(file.lines(), 1, None)


def _csv_blocks(file: CsvFile) -> Iterator[TableBlock]:
    """Read a CSV file by Arrow's parser, and from where that cannot go on by Python's."""
    done = 0
    try:
        for block in parse_plain(file, file.names):
            yield TableBlock(np.arange(done, done + len(block[0])), dict(zip(file.names, block)))
            done += len(block[0])
        return
    except NotPlainError:
        rows = islice(enumerate(_rows(file)), done, None)
    while some := list(islice(rows, _BLOCK_ROWS)):
        size, even = len(file.names), [(number, row) for number, (_, row) in some if len(row) == len(file.names)]
        cells = zip(*(row for _, row in even)) if even else [()] * size
        columns = {name: strings([cell.strip() for cell in own]) for name, own in zip(file.names, cells)}
        uneven = [
            (f"{file.path}, line {line}", f"{len(row)} cells, not {size}")
            for _, (line, row) in some
            if len(row) != size
        ]
        yield TableBlock(np.array([number for number, _ in even], dtype=np.int64), columns, uneven)


def number_column(cells: Any, spelling: Spelling) -> NumberColumn:
    """Return a column of Arrow as numbers; texts are read as those of a CSV file."""
    texts = _texts(pc.cast(cells, pa.uint8()) if pa.types.is_boolean(cells.type) else cells)
    return parse_numbers(spelling.plain(texts) if _is_text(cells) else texts)


def name_column(cells: Any, known: Sequence[str]) -> NameColumn:
    """Return a column of Arrow as names; what is no text in the way in which a known name is written: 1 may be 1.0."""
    found = join_names([parse_names(_texts(cells))])
    if _is_text(cells):
        return found
    spelt = [(text, text.title(), text.upper(), f"{text}.0") for text in found.kinds.to_pylist()]
    return NameColumn(found.codes, strings([next((one for one in ways if one in known), ways[0]) for ways in spelt]))


def _is_text(cells: Any) -> bool:
    return "string" in str(cells.type)  # of any kind, also as categories


def _texts(cells: Any) -> Any:
    """Write the cells of an Arrow array, of which missing ones are empty; numbers keep all their digits."""
    try:
        return pc.coalesce(pc.cast(cells, pa.string()), strings([""])[0])  # a text of Python's would import pandas
    except pa.ArrowNotImplementedError:  # lists and the like
        return strings(["" if cell is None else str(cell) for cell in cells.to_pylist()])


def write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows to a Parquet file, and return how many there are; kinds of columns go by the first few thousand.

    Raises:
        UserError: A column is of another kind further down.
        OSError: The disk is full.
    """
    from pyarrow import parquet

    source, count, writer = iter(rows), 0, None
    try:
        while some := list(islice(source, _BLOCK_ROWS)):
            table = pa.Table.from_pylist(some, schema=None if writer is None else writer.schema)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            count += len(some)
    except pa.ArrowException as error:
        what, fix = f"a column holds several kinds of values: {error}", "write a .csv file"
        raise UserError(what, argument="", fix=fix, family="cannot-write") from error
    finally:
        if writer is not None:
            writer.close()
    return count
