"""Shards of samples on any file system, read by row: one pass over them makes an index of where each row lies.

N rows, S shards.
"""

from __future__ import annotations

import logging
import os
import re
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from itertools import chain, groupby, pairwise, repeat
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from fsspec.core import url_to_fs

from lightkit.common.errors import Problems, UserError
from lightkit.common.failures import in_short
from lightkit.common.reading import parse_json, parse_object
from lightkit.data.class_folders import SUFFIXES
from lightkit.data.images import read_image
from lightkit.data.sources import SampleData
from lightkit.data.tensors import fingerprint
from lightkit.processes.files import replacing, take, user_state, wait_until_free

_BROKEN = (OSError, ValueError, LookupError, TypeError, EOFError, SyntaxError, tarfile.TarError)
_LOG = logging.getLogger(__name__)
Row = tuple[tuple[int, ...] | Mapping[str, tuple[int, ...]], Mapping[str, Any]]
"""By what a row is read, or each field of it, `_EACH` numbers; and its fields, those that are wanted with content."""
_EACH = 3  # numbers of an index for each field: offset, size, and what changes with the content that a scan sees


class Shard(NamedTuple):
    """One file of samples."""

    url: str
    mark: str
    """Changes when the file does."""

    def error(self, row: int, error: Exception) -> UserError:
        """Make the error about a row that cannot be read."""
        why = error.what if isinstance(error, UserError) else in_short(error)
        what = f"row {row + 1:,} of {Path(self.url).name} cannot be read: {why}"
        return UserError(what, argument="path", received=self.url, family="data-unreadable")


@lru_cache(64)
def _opened(shard: Shard, _process: int) -> Any:
    """Open a shard for one process alone, as an open file has a position; nothing is read ahead from elsewhere."""
    files, name = url_to_fs(shard.url)
    if str(files.ukey(name)) != shard.mark:
        raise ValueError("the file has changed since its index was made")
    return files.open(name, cache_type="none")


def _ranges(shard: Shard, numbers: Sequence[int]) -> Iterator[bytes]:
    """Read ranges of a shard, of which the numbers are offset and size."""
    opened = _opened(shard, os.getpid())
    file = getattr(opened, "f", opened)  # of a file here, past a layer that takes longer than the reading
    for offset, size in zip(numbers[::_EACH], numbers[1::_EACH]):
        file.seek(offset)
        yield file.read(size)


def _scan_tar(file: IO[bytes], wanted: str) -> Iterator[Row]:
    """Go through the heads of members as WebDataset names them: alike up to the first dot are those of one sample."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for _, sample in groupby(filter(tarfile.TarInfo.isfile, tar), lambda member: _split(member.name)[0]):
            members = {_split(own.name)[1]: own for own in sample}
            content = {own: tar.extractfile(at).read() if _holds(own, wanted) else b"" for own, at in members.items()}  # type: ignore[union-attr]
            yield {own: (at.offset_data, at.size, int(at.mtime)) for own, at in members.items()}, content
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        file.seek(tar.offset)  # the end of the members, or what is no head of one
        if (head := file.read(tarfile.BLOCKSIZE)).strip(b"\0") or not head:  # zeros end a tar file
            raise ValueError(f"no member begins at byte {tar.offset:,}" if head else "the end of the file is missing")


def _holds(field: str, name: str) -> bool:
    """Tell whether a name is that of a field, or of an entry of one."""
    return f"{name}.".startswith(f"{field}.")


def _field(fields: Iterable[str], name: str) -> str:
    """Return the field that a name is that of, or an entry of."""
    if not (holding := [own for own in fields if _holds(own, name)]):
        raise ValueError(f"there is no field {name!r} among {', '.join(fields)}")
    return max(holding, key=len)


def _split(name: str) -> tuple[str, str]:
    """Split the name of a member at the first dot behind its folder."""
    folder, _, own = name.rpartition("/")
    stem, _, field = own.partition(".")
    return f"{folder}/{stem}", field


def _of_line(parse: Callable[[bytes], Any], shard: Shard, _fields: Sequence[str], numbers: Sequence[int]) -> Any:
    return parse(next(_ranges(shard, numbers)))


def _scan_lines(parse: Callable[[bytes], Any], file: IO[bytes], wanted: str) -> Iterator[Row]:
    place = 0
    for line in file:
        yield (place, len(line), crc32(line)), parse(line)
        place += len(line)


_LINES: Mapping[str, Any] = {".jsonl": parse_object, ".txt": lambda line: {"text": line.decode().rstrip("\r\n")}}


def _scan_groups(file: IO[bytes], wanted: str) -> Iterator[Row]:
    """Go through the groups of rows of a Parquet file, and decode the column that is wanted."""
    from pyarrow.parquet import ParquetFile

    names = dict.fromkeys((whole := ParquetFile(file)).schema_arrow.names)
    for group in range(whole.num_row_groups):
        known = whole.read_row_group(group, [name for name in names if _holds(name, wanted)]).to_pylist()
        mark = crc32(repr(whole.metadata.row_group(group).to_dict()).encode())  # sizes and statistics of columns
        yield from (((group, at, mark), names | row) for at, row in enumerate(known))


@lru_cache(8)
def _group(shard: Shard, fields: Sequence[str], group: int) -> Any:
    """Decode a group of rows of a Parquet file; those of a window are kept where each has a thousand rows or more."""
    from pyarrow.parquet import ParquetFile

    return ParquetFile(_opened(shard, os.getpid())).read_row_group(group, fields, use_threads=False)


FORMATS: Mapping[str, tuple[Callable[..., Iterator[Row]], Callable[..., Any]]] = {
    ".tar": (_scan_tar, lambda shard, fields, numbers: dict(zip(fields, _ranges(shard, numbers)))),
    **{end: (partial(_scan_lines, to), partial(_of_line, to)) for end, to in _LINES.items()},
    ".parquet": (_scan_groups, lambda shard, read, at: _group(shard, read, at[0]).slice(at[1], 1).to_pylist()[0]),
}
"""By the ending of a shard's name: what finds its rows, and what reads one."""
_PACKED = re.compile(r"\.(tgz|(tar|jsonl|txt)\.(gz|bz2|xz|zst))$")


def find_shards(path: str) -> list[Shard]:
    """Return the shards that a path names, sorted.

    Args:
        path: A file, a folder or a glob, on any file system of fsspec.

    Raises:
        UserError: There are none, or their file system cannot be used.
    """
    try:
        files, whole = url_to_fs(path)
        names = sorted(files.find(whole) or files.glob(whole))
        found = [Shard(files.unstrip_protocol(n), str(files.ukey(n))) for n in names if Path(n).suffix in FORMATS]
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"cannot be listed: {in_short(error)}", argument="path", received=path) from error
    packed = next((Path(name).name for name in names if _PACKED.search(name)), "")
    if packed or not found:
        what = f"{packed} is packed: nothing can be read from its middle" if packed else "there is no such shard"
        expected = f"file, folder or glob of *{', *'.join(FORMATS)}, unpacked (no .gz)"
        raise UserError(what, argument="path", received=path, expected=expected, family="data-not-found")
    return found


def read_index(path: Path, shards: Sequence[Shard]) -> dict[str, np.ndarray]:
    """Read an index; empty where there is none of these shards.

    Returns:
        `places` `(N, F)`, for reading rows; `targets` `(N,)`, or none; `shards` `(S, 2)`; `rows` `(S,)`; `fields`.
    """
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            found = dict(arrays)
        if differing := {*map(tuple, found["shards"].tolist())} ^ {*shards}:
            raise ValueError(f"new, changed or gone are {sorted({Path(url).name for url, _ in differing})}")
        return found
    except Exception as error:  # of a damaged archive zipfile, zlib and NumPy raise many kinds
        if not isinstance(error, FileNotFoundError):
            _LOG.warning("the index of shards %s is made again: %s", path, in_short(error))
        return {}


def make_index(path: Path, shards: Sequence[Shard], rows: Callable[[Shard], Sequence[Any]]) -> dict[str, np.ndarray]:
    """Return the index in a file (see `read_index`); one process makes it where there is none, while others wait.

    Args:
        path: The file.
        shards: The shards.
        rows: Lists the numbers, the target and the fields of each row of a shard.

    Raises:
        UserError: Shards cannot be read; all in one report.
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".locked").open("ab") as lock:
        while not (known := read_index(path, shards)):
            if take(lock):
                with replacing(path) as unfinished, unfinished.open("wb") as file:
                    np.savez(file, **_scanned(shards, rows))
            else:
                wait_until_free(lock)
    return known


def _scanned(shards: Sequence[Shard], rows: Callable[[Shard], Sequence[Any]]) -> dict[str, Any]:
    """Go through all shards once."""
    places, values, problems = list[np.ndarray](), list[Any](), Problems()
    for shard in shards:
        with problems.noted():
            numbers, targets, (fields, *_) = zip(*rows(shard), strict=True)
            places.append(np.array(numbers))
            values += targets
    problems.raise_any()
    plain = {type(value) for value in values} in ({bool}, {int}, {float}, {int, float}, {str})
    found = {"targets": values if plain else [], "shards": shards, "rows": [*map(len, places)], "fields": fields}
    return {"places": np.concatenate(places)} | {name: np.array(own) for name, own in found.items()}


class Stream:
    """Rows of shards, each read by itself from its place, which an index knows.

    Args:
        path: The shards: a file, folder or glob on any file system of fsspec, or one for each split by its name.
        target: The field to predict; `json.label` is an entry of one. None gives samples without target.
        fields: The fields to predict from; None takes all others. Numbers make a vector, others a dict.
        classes: Names of the classes in order, or their number; None takes those that there are.
        size: Pixels a side of images: the middle square, scaled; None leaves them.
        decode: By field, a function of its content, or the ending of a file with such content (`jpg`).

    Raises:
        UserError: Shards are missing or damaged, a row lacks a field, or a class is none of those named.
    """

    draws = False

    def __init__(
        self,
        path: str | Mapping[str, str],
        target: str | None = None,
        fields: str | Sequence[str] | None = None,
        classes: int | Sequence[str] | None = None,
        size: int | None = None,
        decode: Mapping[str, Any] | None = None,
    ) -> None:
        self._names = [fields] if isinstance(fields, str) else [*(fields or ())]
        self._target, self._decode = target or "", decode or {}
        image = partial(read_image, size=size, channels=3)
        self._decoders = {**dict.fromkeys(SUFFIXES, lambda content: image(BytesIO(content))), **_DECODERS}
        self.classes: Any = [*map(str, range(classes))] if isinstance(classes, int) else [*(classes or ())]
        paths = path if isinstance(path, Mapping) else {"": path}
        found = [find_shards(own) for own in paths.values()]
        self.sources = self._shards = [shard for own in found for shard in own]
        file = f"{fingerprint([_EACH, self._shards[0].url, *paths.values(), target, classes, self._names])}.index.npz"
        index = make_index((user_state() or Path(gettempdir())) / "streams" / file, self._shards, self._rows)
        self._places, targets, ends = index["places"], index["targets"], np.cumsum([0, *index["rows"]])
        self.shards, self._starts = torch.from_numpy(ends[:-1]), ends[:-1].tolist()
        cuts = ends[np.cumsum([0, *map(len, found)])].tolist()
        self.splits = {split: range(*cut) for split, cut in zip(paths, pairwise(cuts), strict=True) if split}
        if targets.dtype.kind == "U":
            self.classes, targets = np.unique(targets, return_inverse=True)
        self.targets = torch.from_numpy(targets.astype("int64" if targets.dtype.kind in "bi" else "float32"))
        fields = index["fields"].tolist()
        self._names = self._names or self._others(fields)
        read = (*(own for own in fields if not self.targets.numel() or any(_holds(own, at) for at in self._names)),)
        self._readers = [partial(FORMATS[Path(shard.url).suffix][1], shard, read) for shard in self._shards]
        mark = fingerprint([index["rows"], torch.from_numpy(self._places), self.targets, size, self._names])
        self.info = replace(SampleData(self).info, fingerprint=mark)

    def _rows(self, shard: Shard) -> list[tuple[Sequence[int], Any, Sequence[str]]]:
        found, (files, name) = list[Any](), url_to_fs(shard.url)
        try:
            with files.open(name) as file:
                for places, known in FORMATS[Path(name).suffix][0](file, self._target):
                    self._names = self._names or self._others(known)
                    fields = [*dict.fromkeys(_field(known, own) for own in (*self._names, self._target) if own)]
                    at = places if isinstance(places, tuple) else [*chain(*map(places.__getitem__, fields))]
                    found.append((at, self._label(known) if self._target else None, fields))
            if not found:
                raise ValueError("it is empty")
        except _BROKEN as error:
            raise shard.error(len(found), error) from error
        return found

    def __len__(self) -> int:
        return len(self._places)

    def place_of(self, row: int) -> str:
        """Return the row of a shard and its name, for messages."""
        own = bisect_right(self._starts, row) - 1
        return f"{row - self._starts[own] + 1:,} of {Path(self._shards[own].url).name}"

    def __getitem__(self, row: int) -> Any:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Read rows: the content of all of them, then what is made of it, as a loop that does one thing is faster."""
        numbers = [bisect_right(self._starts, row) - 1 for row in rows]
        targets = self.targets.numpy()[rows].tolist() if self.targets.numel() else repeat(None)
        contents, samples = list[Mapping[str, Any]](), list[Any]()
        try:
            contents += (self._readers[own](at) for own, at in zip(numbers, self._places[rows].tolist()))
            samples += map(self._sample, contents, targets)
        except _BROKEN as error:
            at = len(samples if len(contents) == len(rows) else contents)
            raise self._shards[numbers[at]].error(rows[at] - self._starts[numbers[at]], error) from error
        return samples

    def _others(self, fields: Iterable[str]) -> list[str]:
        """Return the fields to predict from where none are named, those of the first row; or what an error says."""
        return [name for name in fields if not _holds(name, self._target)] or ["beside the target"]

    def _sample(self, content: Mapping[str, Any], target: Any) -> Any:
        values = [self._picked(content, name) for name in self._names]
        sample: Any = values[0] if len(values) == 1 else dict(zip(self._names, values))
        if {int, float, bool, type(None)}.issuperset(map(type, values)):
            sample = torch.tensor(values, dtype=torch.float32)
        return (sample, self._label(content) if target is None else target) if self._target else sample

    def _label(self, content: Mapping[str, Any]) -> Any:
        value = self._picked(content, self._target)
        known = range(len(self.classes)) if isinstance(value, int) else self.classes
        if value is None or (self.classes and value not in known):
            raise ValueError(f"its target is missing, or none of data.dataset.classes: {value!r}")
        return known.index(value) if self.classes else value

    def _picked(self, content: Mapping[str, Any], name: str) -> Any:
        """Return a field, or an entry of one, decoded."""
        if name in content:
            return self._decoded(name, content[name])
        field = _field(content, name)
        value = self._decoded(field, content[field])
        for key in name[len(field) + 1 :].split("."):
            if not isinstance(value, Mapping) or key not in value:
                raise ValueError(f"{field!r} has no entry {name[len(field) + 1 :]!r}")
            value = value[key]
        return self._decoded(name, value)

    def _decoded(self, name: str, value: Any) -> Any:
        how = self._decode.get(name, name.rpartition(".")[2].lower())
        if not isinstance(how, str):
            return how(value)
        if isinstance(value, list) and not any(isinstance(one, (str, dict)) for one in value):
            return torch.tensor(value)
        return self._decoders.get(f".{how}", bytes)(value) if isinstance(value, bytes) else value


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys((".json", ".cls"), parse_json),
    ".txt": bytes.decode,
    ".npy": lambda content: torch.from_numpy(np.load(BytesIO(content))),
}
"""What makes a value of the content of a field, by the last part of its name; images are those of `SUFFIXES`."""
