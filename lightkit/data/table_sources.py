"""Where the rows of a table come from: files by their ending, folders of them, and data frames, as columns of Arrow."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import has_magic
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightkit.common.csv_lines import CsvFile, open_csv
from lightkit.common.errors import Problems, UserError
from lightkit.data.csv_columns import strings, texts
from lightkit.data.csv_reader import Block, csv_blocks

_BLOCK_ROWS = 2**13
_BATCH_ROWS = 2**17
_SHOWN = 5
_PARQUET, _ARROW, _JSON = (".parquet", ".pq"), (".feather", ".arrow", ".ipc"), (".jsonl", ".ndjson")
_CSV = (".csv", ".tsv", ".txt", ".tab", ".data", ".dat")
_OTHERS = (".xlsx", ".xls", ".ods", ".zip", ".gz", ".json", ".npy", ".npz", ".pkl", ".png", ".jpg", ".jpeg")
EXPECTED = "a .csv, .tsv, .parquet, .feather, .arrow or .jsonl file, a folder or a pattern of such files"


@dataclass(frozen=True)
class TableSource:
    """A table that is read block by block; this one comes in batches of Arrow.

    Args:
        label: How messages call it.
        names: Names of its columns.
        batches: Reads columns from the beginning: record batches, or arrays by name.
        argument: Argument that gives it, for errors.
        files: What it is read from; empty for what is in memory.
        spelling: What else decides how files are read.

    Raises:
        UserError: Two columns have one name.
    """

    label: str
    names: tuple[str, ...]
    batches: Callable[[Sequence[str]], Iterable[Any]] = field(repr=False)
    argument: str = "path"
    files: tuple[Path, ...] = ()
    spelling: str = ""

    def __post_init__(self) -> None:
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            what = f"{self.label} names a column twice"
            raise UserError(what, argument=self.argument, received=twice[0], family="data-unreadable")

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """Yield the rows with the columns that are wanted.

        Raises:
            UserError: The table cannot be read.
        """
        first = 0
        for batch in self.batches(wanted):
            size = len(batch[wanted[0]] if isinstance(batch, dict) else batch)
            columns = {name: _whole(batch[name]) for name in wanted}
            if size:
                yield Block(np.arange(first, first + size), columns, size)
            first += size

    def places(self, numbers: Sequence[int]) -> list[str]:
        """Tell where rows stand, by their numbers."""
        return [f"{self.label}, row {number}" for number in numbers]

    def unknown(self, names: Sequence[str], *, argument: str) -> Iterator[UserError]:
        """Yield the error of every name that is no column, of many of the first few."""
        lacking = [name for name in dict.fromkeys(names) if name not in self.names]
        for name in lacking[:_SHOWN]:
            more = f" (and {len(lacking) - _SHOWN:,} others are none)" if len(lacking) > _SHOWN else ""
            what = f"{self.label} has no such column{more}"
            yield UserError(what, argument=argument, received=name, choices=self.names)

    def cell(self, number: int, name: str) -> tuple[str, str]:
        """Return the place of a row and its cell in a column, as text.

        Raises:
            UserError: There is no such row any more.
        """
        for block in self.blocks([name]):
            at = int(np.searchsorted(block.numbers, number))
            if at < len(block.numbers) and block.numbers[at] == number:
                return self.places([number])[0], str(texts(block.columns[name].slice(at, 1))[0]).strip()
        raise UserError(
            "the file was changed while it was being read",
            argument=self.argument,
            received=self.label,
            family="data-unreadable",
        )


@dataclass(frozen=True)
class CsvTable(TableSource):
    """The rows of a CSV file; messages name its lines.

    Args:
        file: The file.
    """

    file: CsvFile = field(kw_only=True)

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """Yield the rows; see `TableSource.blocks`."""
        return csv_blocks(self.file, wanted)

    def places(self, numbers: Sequence[int]) -> list[str]:
        """Tell the lines of rows."""
        return _lines(self.label, numbers, (line for line, _ in islice(self.file.lines(), 1, None)))


@dataclass(frozen=True)
class JsonTable(TableSource):
    """The rows of a file with an object of JSON in each line; messages name the lines."""

    def places(self, numbers: Sequence[int]) -> list[str]:
        """Tell the lines of rows."""
        with self.files[0].open("rb") as file:
            return _lines(self.label, numbers, (line for line, text in enumerate(file, 1) if text.strip()))


@dataclass(frozen=True)
class ManyTables(TableSource):
    """The rows of several files with the same columns, one after the other.

    Args:
        parts: The files.
    """

    parts: Sequence[TableSource] = field(kw_only=True)
    _starts: list[int] = field(default_factory=list, init=False, compare=False)

    def blocks(self, wanted: Sequence[str]) -> Iterator[Block]:
        """Yield the rows of all files; see `TableSource.blocks`."""
        self._starts[:], end = [], 0
        for part in self.parts:
            start = end
            self._starts.append(start)
            for block in part.blocks(wanted):
                end += block.size
                yield block._replace(numbers=block.numbers + start)

    def places(self, numbers: Sequence[int]) -> list[str]:
        """Tell the files of rows, and where they stand in these."""
        at = [bisect_right(self._starts, number) - 1 for number in numbers]
        pairs = zip(at, numbers, strict=True)
        return [self.parts[part].places([number - self._starts[part]])[0] for part, number in pairs]


def _whole(cells: Any) -> Any:
    return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells


def _lines(label: str, numbers: Sequence[int], lines: Iterable[int]) -> list[str]:
    wanted = {*numbers}
    found = {number: line for number, line in enumerate(lines) if number in wanted}
    return [f"{label}, line {found.get(number, '?')}" for number in numbers]


def table_files(path: str | Path) -> list[Path]:
    """Return the files that a path stands for: those of a folder or pattern in the order of their names, or itself."""
    whole = Path(path).expanduser()
    if whole.is_dir():
        return sorted(one for one in whole.iterdir() if one.is_file() and not one.name.startswith((".", "_")))
    plain = [*takewhile(lambda part: not has_magic(part), whole.parts)]
    if len(plain) < len(whole.parts) and not whole.exists():
        return sorted(one for one in Path(*plain).glob(str(Path(*whole.parts[len(plain) :]))) if one.is_file())
    return [whole]


def open_table(
    given: Any,
    *,
    argument: str = "path",
    delimiter: str = ",",
    encoding: str = "utf-8",
    content: bytes | None = None,
) -> TableSource:
    """Open a table by the ending of its file; other endings are those of CSV files.

    Args:
        given: A file, folder or pattern of files; or a data frame of pandas, polars or Arrow.
        argument: Argument that gives it, for errors.
        delimiter: What stands between two cells of a CSV file; in one that ends in `.tsv` a tab stands for a comma.
        encoding: How its text is written down.
        content: All of a CSV file, where it was read already.

    Raises:
        UserError: It is no table, cannot be read, has no rows, or files differ in their columns.
    """
    if not isinstance(given, (str, Path)):
        return frame_source(given, argument)
    how: dict[str, Any] = {"argument": argument, "delimiter": delimiter, "encoding": encoding}
    if content is not None:
        return _csv(Path(given), content=content, **how)
    files, parts, problems = table_files(given), list[TableSource](), Problems()
    if [Path(given).expanduser()] == files:
        return _file(files[0], **how)
    if not files:
        what = "there are no tables"
        raise UserError(what, argument=argument, expected=EXPECTED, received=str(given), family="data-not-found")
    for path in files:
        with problems.noted():
            parts.append(_file(path, known=True, **how))
            lacking, more = _missing(parts[0], parts[-1]), _missing(parts[-1], parts[0])
            if lacking or more:
                told = f"{path} has other columns than {files[0].name}: "
                told += "; ".join(filter(None, (lacking and f"lacks {lacking}", more and f"has {more} more")))
                raise UserError(told, argument=argument, received=str(given), family="data-unreadable")
    del problems[_SHOWN:]
    problems.raise_any()
    return ManyTables(
        str(given), parts[0].names, parts[0].batches, argument, tuple(files), parts[0].spelling, parts=parts
    )


def _missing(one: TableSource, other: TableSource) -> str:
    return ", ".join([name for name in one.names if name not in other.names][:_SHOWN])


def _file(path: Path, *, known: bool = False, argument: str, **how: Any) -> TableSource:
    """Open one file; `known` wants an ending that is one of a table."""
    ending = path.suffix.lower()
    if ending in _OTHERS or (known and ending not in (*_PARQUET, *_ARROW, *_JSON, *_CSV)):
        what, fix = f"{path}: no table can be read from such a file", "a pattern such as 'FOLDER/*.csv' leaves it out"
        facts: dict[str, Any] = {"expected": EXPECTED, "received": path.name, "fix": fix if known else None}
        raise UserError(what, argument=argument, **facts, family="data-unreadable")
    if ending in _PARQUET:
        return _parquet(path, argument)
    if ending in _ARROW:
        return _arrow(path, argument)
    return _json(path, argument) if ending in _JSON else _csv(path, argument=argument, **how)


def _csv(path: Path, *, argument: str, delimiter: str, encoding: str, content: bytes | None = None) -> TableSource:
    delimiter = "\t" if (path.suffix.lower(), delimiter) == (".tsv", ",") else delimiter
    file = open_csv(path, delimiter=delimiter, encoding=encoding, argument=argument, content=content)
    files = (file.path,) if file.content is None else ()
    return CsvTable(str(file.path), file.names, _nothing, argument, files, f"{file.delimiter}{file.codec}", file=file)


def _nothing(wanted: Sequence[str]) -> Iterable[Any]:
    return ()


@contextmanager
def _readable(path: Path, argument: str) -> Iterator[None]:
    """Say of what is read inside that the file cannot be read, where that is so."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        what, expected = f"the file cannot be read: {str(error).splitlines()[0]}", f"a {path.suffix[1:]} file"
        raise UserError(
            what, argument=argument, expected=expected, received=str(path), family="data-unreadable"
        ) from error


def _parquet(path: Path, argument: str) -> TableSource:
    from pyarrow import parquet

    def batches(wanted: Sequence[str]) -> Iterator[Any]:
        with _readable(path, argument), parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=[*wanted], use_threads=False)

    with _readable(path, argument), parquet.ParquetFile(path) as file:
        return TableSource(str(path), tuple(file.schema_arrow.names), batches, argument, (path,))


def _arrow(path: Path, argument: str) -> TableSource:
    def opened() -> tuple[tuple[str, ...], Iterable[Any]]:
        """Open the file in the form for random access, which Feather has too, or as a stream."""
        mapped = pa.memory_map(str(path))
        try:
            file = pa.ipc.open_file(mapped)
            return tuple(file.schema.names), map(file.get_batch, range(file.num_record_batches))
        except pa.ArrowInvalid:
            mapped.seek(0)
            stream = pa.ipc.open_stream(mapped)
            return tuple(stream.schema.names), stream

    def batches(wanted: Sequence[str]) -> Iterator[Any]:
        with _readable(path, argument):
            yield from (batch.select([*wanted]) for batch in opened()[1])

    with _readable(path, argument):
        return TableSource(str(path), opened()[0], batches, argument, (path,))


def _json(path: Path, argument: str) -> TableSource:
    from pyarrow import json as arrow

    with _readable(path, argument):
        options = arrow.ReadOptions(use_threads=False, block_size=max(1, min(path.stat().st_size, 2**31 - 1)))
        try:
            table = arrow.read_json(str(path), options)
        except pa.ArrowInvalid:
            table = _json_by_python(path, argument)
    if not table.num_rows:
        raise UserError("the file has no rows", argument=argument, received=str(path), family="data-unreadable")
    return JsonTable(str(path), tuple(table.column_names), lambda wanted: [table.select([*wanted])], argument, (path,))


def _json_by_python(path: Path, argument: str) -> Any:
    """Read lines of JSON whose values are of several kinds, as texts, or tell all lines that are broken."""
    rows, bad = list[dict[str, Any]](), list[tuple[int, str]]()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else None
                if row is not None:
                    rows.append(dict(row))
            except (ValueError, TypeError) as error:
                bad.append((number, str(error).partition(": line 1")[0]))
    if bad:
        more = f"; broken, too: line {', '.join(str(number) for number, _ in bad[1:_SHOWN])}" if len(bad) > 1 else ""
        more += f", … ({len(bad):,} in all)" if len(bad) > _SHOWN else ""
        what = f"{path}, line {bad[0][0]}: no object of JSON: {bad[0][1]}{more}"
        expected = 'an object in each line, such as {"height": 1.5, "kind": "a"}'
        raise UserError(what, argument=argument, expected=expected, received=str(path), family="data-unreadable")
    names = [*dict.fromkeys(name for row in rows for name in row)]
    return pa.table([strings([_text(row.get(name)) for row in rows]) for name in names], names=names)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def frame_source(frame: Any, argument: str = "frame") -> TableSource:
    """Return the rows of a data frame of pandas, polars or Arrow.

    Raises:
        UserError: It is none.
    """
    given = frame
    if hasattr(frame, "to_arrow"):
        frame = frame.to_arrow()
    if isinstance(frame, pa.Table):
        named = [(name, _whole(column)) for name, column in zip(frame.column_names, frame.columns)]
    elif hasattr(frame, "columns") and hasattr(frame, "iloc"):
        named = [(str(name), _array(frame.iloc[:, i])) for i, name in enumerate(frame.columns)]
    else:
        expected = "a data frame of pandas, polars or Arrow"
        raise UserError("this is no table", argument=argument, expected=expected, received=type(given).__name__)
    columns = dict(named)
    return TableSource("the table", tuple(name for name, _ in named), lambda wanted: [columns], argument)


def _array(series: Any) -> Any:
    """Make an Arrow array of a column of pandas; of one that holds all kinds of things their texts."""
    try:
        return _whole(pa.array(series, from_pandas=True))
    except (pa.ArrowException, TypeError, ValueError):
        there = series.notna()
        return pa.array([str(cell) if known else None for cell, known in zip(series, there)], pa.string())


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
