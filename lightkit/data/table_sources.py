"""Where the rows of a table come from: files by their ending, folders of them, and data frames, as columns of Arrow."""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from glob import has_magic
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from lightkit.common.csv_lines import open_csv
from lightkit.common.errors import Problems, UserError
from lightkit.data.csv_columns import strings, texts, whole
from lightkit.data.csv_reader import RowBlock, csv_blocks

_BLOCK_ROWS = 2**13
_SHOWN = 5
_PARQUET, _ARROW, _JSON = (".parquet", ".pq"), (".feather", ".arrow", ".ipc"), (".jsonl", ".ndjson")
_CSV = (".csv", ".tsv", ".txt", ".tab", ".data", ".dat")
_PACKED = (".gz", ".bz2", ".zst", ".lz4")
_OTHERS = (".xlsx", ".xls", ".ods", ".zip", ".tar", ".tgz", ".xz", ".json", ".npy", ".pkl", ".png", ".jpg", ".jpeg")
EXPECTED = "a .csv, .tsv, .parquet, .feather, .arrow or .jsonl file, a folder or a pattern of such files"


@dataclass(frozen=True)
class TableSource:
    """A table that is read block by block.

    Args:
        label: How messages call it.
        names: Names of its columns.
        blocks: Reads columns by their names, from the beginning.
        argument: Argument that gives it, for errors.
        files: What it is read from; empty for what is in memory.
        spelling: What else decides how files are read.
        find: Tells where rows stand by their numbers; None where the numbers say it.
        kinds: What columns hold by the type that they have there, `dates` or `categorical`.

    Raises:
        UserError: Two columns have one name.
    """

    label: str
    names: tuple[str, ...]
    blocks: Callable[[Sequence[str]], Iterator[RowBlock]] = field(repr=False)
    argument: str = "path"
    files: tuple[Path, ...] = ()
    spelling: str = ""
    find: Callable[[Sequence[int]], list[str]] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        twice = [name for i, name in enumerate(self.names) if name in self.names[:i]]
        if twice:
            what = f"{self.label} names a column twice"
            raise UserError(what, argument=self.argument, received=twice[0], family="data-unreadable")

    def places(self, numbers: Sequence[int]) -> list[str]:
        """Tell where rows stand, by their numbers."""
        return self.find(numbers) if self.find else [f"{self.label}, row {number}" for number in numbers]

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
        what = "the file was changed while it was being read"
        raise UserError(what, argument=self.argument, received=self.label, family="data-unreadable")


def _arrow_blocks(batches: Callable[[Sequence[str]], Iterable[Any]], wanted: Sequence[str]) -> Iterator[RowBlock]:
    """Yield record batches of Arrow, tables, or arrays by name as blocks."""
    first = 0
    for batch in batches(wanted):
        columns = {name: whole(batch[name]) for name in wanted}
        size = len(columns[wanted[0]])
        if size:
            yield RowBlock(np.arange(first, first + size), columns, size)
        first += size


def _arrow_source(
    label: str, types: Sequence[tuple[str, Any]], batches: Any, argument: str, **more: Any
) -> TableSource:
    """Return a table of Arrow, by the names and types of its columns and what reads some of them."""
    kinds = {name: "dates" for name, kind in types if pa.types.is_timestamp(kind) or pa.types.is_date(kind)}
    kinds |= {name: "categorical" for name, kind in types if pa.types.is_dictionary(kind)}
    names = tuple(name for name, _ in types)
    return TableSource(label, names, partial(_arrow_blocks, batches), argument, kinds=kinds, **more)


def _joined(label: str, parts: Sequence[TableSource], argument: str) -> TableSource:
    """Return the rows of several files with the same columns, one after the other."""
    starts = list[int]()

    def blocks(wanted: Sequence[str]) -> Iterator[RowBlock]:
        starts[:], end = [], 0
        for part in parts:
            start = end
            starts.append(start)
            for block in part.blocks(wanted):
                end += block.size
                yield block._replace(numbers=block.numbers + start)

    def find(numbers: Sequence[int]) -> list[str]:
        pairs = [(bisect_right(starts, number) - 1, number) for number in numbers]
        return [parts[at].places([number - starts[at]])[0] for at, number in pairs]

    files = tuple(path for part in parts for path in part.files)
    kinds = {name: kind for name, kind in parts[0].kinds.items() if all(part.kinds.get(name) == kind for part in parts)}
    return TableSource(label, parts[0].names, blocks, argument, files, parts[0].spelling, find, kinds)


def _lines(label: str, numbers: Sequence[int], lines: Iterable[int]) -> list[str]:
    wanted = {*numbers}
    found = {number: line for number, line in enumerate(lines) if number in wanted}
    return [f"{label}, line {found.get(number, '?')}" for number in numbers]


def table_files(path: str | Path) -> list[Path]:
    """Return the files that a path stands for: those of a folder or pattern in the order of their names, or itself."""
    given = Path(path).expanduser()
    if given.is_dir():
        return sorted(one for one in given.iterdir() if one.is_file() and not one.name.startswith((".", "_")))
    plain = [*takewhile(lambda part: not has_magic(part), given.parts)]
    if len(plain) < len(given.parts) and not given.exists():
        return sorted(one for one in Path(*plain).glob(str(Path(*given.parts[len(plain) :]))) if one.is_file())
    return [given]


def open_table(given: Any, *, argument: str = "path", content: bytes | None = None, **how: str) -> TableSource:
    """Open a table by the ending of its file; other endings are those of CSV files.

    Args:
        given: A file, folder or pattern of files; or a data frame of pandas, polars or Arrow.
        argument: Argument that gives it, for errors.
        content: All of a CSV file, where it was read already.
        **how: How a CSV file is written: `delimiter` (in one that ends in `.tsv` a tab stands for a comma), `encoding`.

    Raises:
        UserError: It is no table, cannot be read, has no rows, or files differ in their columns.
    """
    if not isinstance(given, (str, Path)):
        return frame_source(given, argument)
    how = {"argument": argument, "delimiter": ",", "encoding": "utf-8", **how}
    if content is not None:
        return _csv(Path(given), content=content, **how)
    files, parts, problems = table_files(given), list[TableSource](), Problems()
    if [Path(given).expanduser()] == files:
        return _file(files[0], known=False, **how)
    folder = Path(given).expanduser()
    if _parted(folder, files, argument):
        return _columnar(folder, argument, "parquet")
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
    return _joined(str(given), parts, argument)


def _parted(folder: Path, files: Sequence[Path], argument: str) -> bool:
    """Tell whether a folder has folders such as `year=2024` with a table, which no file may lie beside."""
    parts = sorted(folder.glob("*=*/"))
    if files and (held := [part.name for part in parts if any(part.rglob("*.parquet"))]):
        what = f"{files[0]} lies beside folders such as {held[0]}, a table of their own"
        fix = f"move it elsewhere, or '{folder}/*{files[0].suffix}' reads no folders"
        raise UserError(what, argument=argument, received=str(folder), fix=fix, family="data-unreadable")
    return not files and bool(parts)


def _missing(one: TableSource, other: TableSource) -> str:
    return ", ".join([name for name in one.names if name not in other.names][:_SHOWN])


def _file(path: Path, *, known: bool, argument: str, **how: Any) -> TableSource:
    """Open one file; `known` wants an ending that is one of a table."""
    ending = _ending(path)
    if ending in _OTHERS or (known and ending not in (*_PARQUET, *_ARROW, *_JSON, *_CSV)):
        what, fix = f"{path}: no table can be read from such a file", "a pattern such as 'FOLDER/*.csv' leaves it out"
        facts: dict[str, Any] = {"expected": EXPECTED, "received": path.name, "fix": fix if known else None}
        raise UserError(what, argument=argument, **facts, family="data-unreadable")
    if ending in (*_PARQUET, *_ARROW):
        return _columnar(path, argument, "parquet" if ending in _PARQUET else "ipc")
    return _json(path, argument) if ending in _JSON else _csv(path, argument=argument, **how)


def _csv(path: Path, *, delimiter: str, **how: Any) -> TableSource:
    delimiter = "\t" if (_ending(path), delimiter) == (".tsv", ",") else delimiter
    file = open_csv(path, delimiter=delimiter, opened=_opened, **how)
    files = (file.path,) if file.content is None else ()

    def find(numbers: Sequence[int]) -> list[str]:
        return _lines(str(path), numbers, (line for line, _ in islice(file.lines(), 1, None)))

    spelling = f"{file.delimiter}{file.codec}"
    return TableSource(str(file.path), file.names, partial(csv_blocks, file), file.argument, files, spelling, find)


def _ending(path: Path) -> str:
    """Return the ending of a file, before that of a packed one."""
    return Path(path.stem if path.suffix.lower() in _PACKED else path).suffix.lower()


def _opened(path: Path) -> BinaryIO:
    """Open a file to be read, unpacked as it is read where its ending says how."""
    return io.BufferedReader(pa.input_stream(str(path))) if path.suffix.lower() in _PACKED else path.open("rb")


@contextmanager
def _readable(path: Path, argument: str) -> Iterator[None]:
    """Say of what is read inside that the file cannot be read, where that is so."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        what = f"the file cannot be read: {str(error).splitlines()[0]}"
        expected = "folders of Parquet files alone" if path.is_dir() else f"a {path.suffix[1:]} file"
        facts = {"expected": expected, "received": str(path), "family": "data-unreadable"}
        raise UserError(what, argument=argument, **facts) from error  # type: ignore[arg-type]


def _columnar(path: Path, argument: str, kind: str) -> TableSource:
    """Open a Parquet file, or one of Arrow in the form for random access, which Feather has too, or as a stream."""
    from pyarrow import dataset

    def opened() -> Any:
        if path.is_dir():
            return dataset.dataset(str(path), format=kind, partitioning="hive")
        with path.open("rb") as file:
            if kind == "parquet" or file.read(6) == b"ARROW1":
                return dataset.dataset(str(path), format=kind)
        return dataset.dataset(pa.ipc.open_stream(pa.memory_map(str(path))).read_all())

    def batches(wanted: Sequence[str]) -> Iterator[Any]:
        with _readable(path, argument):
            yield from opened().to_batches(columns=[*wanted], batch_readahead=0, use_threads=False)

    with _readable(path, argument):
        schema, files = opened().schema, tuple(path.rglob("*.*")) if path.is_dir() else (path,)
    return _arrow_source(str(path), [*zip(schema.names, schema.types)], batches, argument, files=files)


def _json(path: Path, argument: str) -> TableSource:
    from pyarrow import json as arrow

    with _readable(path, argument), _opened(path) as stream:
        content = stream.read()
        options = arrow.ReadOptions(use_threads=False, block_size=max(1, min(len(content), 2**31 - 1)))
        try:
            table = arrow.read_json(pa.BufferReader(content), options)
        except pa.ArrowInvalid:
            table = _json_by_python(path, argument)
    if not table.num_rows:
        raise UserError("the file has no rows", argument=argument, received=str(path), family="data-unreadable")

    def find(numbers: Sequence[int]) -> list[str]:
        with _opened(path) as file:
            return _lines(str(path), numbers, (line for line, text in enumerate(file, 1) if text.strip()))

    types = [*zip(table.column_names, table.schema.types)]
    return _arrow_source(str(path), types, lambda wanted: [table], argument, files=(path,), find=find)


def _json_by_python(path: Path, argument: str) -> Any:
    """Read lines of JSON whose values are of several kinds, as texts, or tell all lines that are broken."""
    rows, bad = list[dict[str, Any]](), list[tuple[int, str]]()
    with io.TextIOWrapper(_opened(path), encoding="utf-8-sig", errors="replace") as file:
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
    """Return the rows of a data frame of pandas, polars or Arrow, or of lists by the names of their columns.

    Raises:
        UserError: It is none.
    """
    given = frame
    for way in ("collect", "to_arrow"):  # of polars
        frame = getattr(frame, way)() if hasattr(frame, way) else frame
    if isinstance(frame, pa.Table):
        named = [(name, whole(column)) for name, column in zip(frame.column_names, frame.columns)]
    elif hasattr(frame, "columns") and hasattr(frame, "iloc"):
        named = [(str(name), _array(frame.iloc[:, i])) for i, name in enumerate(frame.columns)]
    elif isinstance(frame, dict):
        named = [(name, strings([*map(str, cells)])) for name, cells in frame.items()]
    else:
        expected = "a data frame of pandas, polars or Arrow"
        raise UserError("this is no table", argument=argument, expected=expected, received=type(given).__name__)
    types = [(name, cells.type) for name, cells in named]
    return _arrow_source("the table", types, lambda wanted: [dict(named)], argument)


def _array(series: Any) -> Any:
    """Make an Arrow array of a column of pandas; of one that holds all kinds of things their texts."""
    try:
        return whole(pa.array(series, from_pandas=True))
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
