"""A decoded copy of the columns of large files in the user's cache folder, so that the next start need not parse.

It holds for the very files that it was made of (names, sizes, times of the last change) and for what was asked of them.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lightkit.data.csv_columns import NameColumn, NumberColumn, array, view
from lightkit.processes.files import replacing, user_cache

_LEAST = 16 * 2**20
"""Bytes of files from which on a copy is kept."""
_FRESH = 2.0
"""Seconds after which a further change of a file shows in the time of its last change, on any file system."""
_KEPT = 30 * 86400.0
"""Seconds after which a copy that nobody has read goes."""
_VERSION = 2


@dataclass(frozen=True)
class Cache:
    """The copy of some columns.

    Args:
        path: Its file; None for none.
        mark: What the files were that it is made of.
    """

    path: Path | None = None
    mark: str = ""

    @classmethod
    def of(cls, files: Sequence[Path], asked: Any) -> Cache:
        """Return the copy of files, as far as one is kept of these.

        Args:
            files: The files; empty for what is not read from files.
            asked: How they are read, and what for, in plain values.
        """
        folder = user_cache()
        try:
            facts = [path.stat() for path in files]
        except OSError:
            return cls()
        newest = max((max(one.st_mtime, one.st_ctime) for one in facts), default=0.0)
        if folder is None or sum(one.st_size for one in facts) < _LEAST or time.time() - newest < _FRESH:
            return cls()
        names = [str(path.resolve()) for path in files]
        place = blake2b(json.dumps([_VERSION, names, asked]).encode(), digest_size=16).hexdigest()
        marks = [[one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino] for one in facts]
        return cls(folder / "tables" / f"{place}.arrow", json.dumps(marks))

    def load(self) -> dict[str, NumberColumn | NameColumn]:
        """Return the columns; none where there is no copy, it is damaged, or the files are others by now."""
        if self.path is None:
            return {}
        with suppress(OSError, ValueError, LookupError, pa.ArrowException):
            batch = pa.ipc.open_file(pa.memory_map(str(self.path))).get_batch(0)
            facts = json.loads(batch.schema.metadata[b"facts"])
            if facts["mark"] == self.mark and facts["sums"] == [_sum(column) for column in batch.columns]:
                os.utime(self.path)
                doubtful = facts["doubtful"]
                return {name: _column(cells, doubtful[name]) for name, cells in zip(batch.schema.names, batch.columns)}
        return {}

    def save(self, columns: Mapping[str, NumberColumn | NameColumn]) -> None:
        """Keep columns without faults; where that cannot be done, nothing is kept."""
        numbers = [column for column in columns.values() if isinstance(column, NumberColumn)]
        if self.path is None or any(column.text.any() for column in numbers):
            return
        arrays = [*map(_arrow, columns.values())]
        doubtful = {name: getattr(column, "doubtful", "") for name, column in columns.items()}
        facts = json.dumps({"mark": self.mark, "sums": [_sum(column) for column in arrays], "doubtful": doubtful})
        fields = [pa.field(name, column.type) for name, column in zip(columns, arrays, strict=True)]
        schema = pa.schema(fields, metadata={"facts": facts})
        with suppress(OSError, pa.ArrowException):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(self.path) as unfinished, pa.ipc.new_file(str(unfinished), schema) as file:
                file.write_batch(pa.record_batch(arrays, schema=schema))
            for other in self.path.parent.glob("*.arrow"):
                if time.time() - other.stat().st_mtime > _KEPT:
                    other.unlink(missing_ok=True)


def _arrow(column: NumberColumn | NameColumn) -> Any:
    if isinstance(column, NumberColumn):
        return array(column.values, pa.float32())
    return pa.DictionaryArray.from_arrays(array(column.codes, pa.int32()), column.kinds)


def _column(cells: Any, doubtful: str) -> NumberColumn | NameColumn:
    if isinstance(cells, pa.DictionaryArray):
        return NameColumn(view(cells.indices, np.int32), cells.dictionary)
    values = view(cells, np.float32)
    return NumberColumn(values, np.isnan(values), np.zeros(len(values), dtype=bool), doubtful)


def _sum(cells: Any) -> int:
    """Return a checksum of what an array holds."""
    if not isinstance(cells, pa.DictionaryArray):
        return zlib.crc32(view(cells, np.float32).data)
    (_, ends, letters), names = cells.dictionary.buffers(), cells.dictionary
    bounds = np.frombuffer(ends, dtype=np.int32)[names.offset : names.offset + len(names) + 1]
    found = zlib.crc32((bounds - bounds[0]).data, zlib.crc32(view(cells.indices, np.int32).data))
    return zlib.crc32(memoryview(letters or b"")[bounds[0] : bounds[-1]], found)
