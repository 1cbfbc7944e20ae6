"""A decoded copy of the columns of large files in the user's cache folder, so that the next start need not parse.

It holds for the very files that it was made of (names, sizes, times of the last change) and for what was asked of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightkit.data.csv_columns import NameColumn, NumberColumn, array, view
from lightkit.processes.files import FRESH_SECONDS, cache_file, file_marks, replacing

_LEAST = 16 * 2**20
"""Bytes of files from which on a copy is kept."""
_VERSION = 3
_SUM = 4
"""Bytes of the checksum at the end."""


def copy_of(files: Sequence[Path], asked: Any) -> Path | None:
    """Return the copy of files; None where none is kept of these.

    Args:
        files: The files; empty for what is not read from files.
        asked: How they are read, and what for, in plain values.
    """
    with suppress(OSError):
        marks, age = file_marks(files)
        if sum(size for size, *_ in marks) >= _LEAST and age >= FRESH_SECONDS:
            return cache_file("tables", [_VERSION, *map(str, map(Path.resolve, files)), asked], marks)
    return None


def load_columns(path: Path | None) -> dict[str, NumberColumn | NameColumn]:
    """Return the columns in a copy; none where there is no copy, or it is damaged."""
    with suppress(OSError, ValueError, LookupError, pa.ArrowException):
        whole = pa.memory_map(str(path or "")).read_buffer()
        content = whole.slice(0, max(0, whole.size - _SUM))
        if zlib.crc32(content) == int.from_bytes(whole.slice(content.size).to_pybytes(), "little"):
            batch = pa.ipc.open_file(content).get_batch(0)
            doubtful = json.loads(batch.schema.metadata[b"doubtful"])
            return {name: _column(cells, doubtful[name]) for name, cells in zip(batch.schema.names, batch.columns)}
    return {}


def save_columns(path: Path | None, columns: Mapping[str, NumberColumn | NameColumn]) -> None:
    """Keep columns without faults; where that cannot be done, nothing is kept."""
    numbers = [column for column in columns.values() if isinstance(column, NumberColumn)]
    if path is None or any(column.text.any() for column in numbers):
        return
    arrays = [*map(_arrow, columns.values())]
    doubtful = json.dumps({name: getattr(column, "doubtful", "") for name, column in columns.items()})
    fields = [pa.field(name, column.type) for name, column in zip(columns, arrays, strict=True)]
    schema = pa.schema(fields, metadata={"doubtful": doubtful})
    with suppress(OSError, pa.ArrowException), replacing(path) as unfinished:
        with pa.ipc.new_file(str(unfinished), schema) as file:
            file.write_batch(pa.record_batch(arrays, schema=schema))
        mark = zlib.crc32(pa.memory_map(str(unfinished)).read_buffer())
        with unfinished.open("ab") as file:
            file.write(mark.to_bytes(_SUM, "little"))


def _arrow(column: NumberColumn | NameColumn) -> Any:
    if isinstance(column, NumberColumn):
        return array(column.values, pa.float32())
    return pa.DictionaryArray.from_arrays(array(column.codes, pa.int32()), column.kinds)


def _column(cells: Any, doubtful: str) -> NumberColumn | NameColumn:
    if isinstance(cells, pa.DictionaryArray):
        return NameColumn(view(cells.indices, np.int32), cells.dictionary)
    values = view(cells, np.float32)
    return NumberColumn(values, np.isnan(values), np.zeros(len(values), dtype=bool), doubtful)
