"""Shards of samples on any file system, read by row: one pass over them makes an index of where each row lies.

N rows, S shards.
"""

from __future__ import annotations

import logging
import os
import tarfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from io import BytesIO
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import gettempdir
from typing import IO, Any, NamedTuple

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
Row = tuple[int, int, Mapping[str, Any]]
"""The two numbers by which a row is read, and what is known of it: the field that is wanted, at least."""


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
    return files.open(name, cache_type="none")


def _read(parse: Callable[[bytes], Any], shard: Shard, offset: int, size: int) -> Any:
    """Read a row whose two numbers are offset and size."""
    file = _opened(shard, os.getpid())
    file.seek(offset)
    return parse(file.read(size))


def _scan_tar(file: IO[bytes], wanted: str) -> Iterator[Row]:
    """Go through the heads of members as WebDataset names them: alike up to the first dot are those of one sample."""
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for _, sample in groupby(filter(tarfile.TarInfo.isfile, tar), lambda member: _split(member.name)[0]):
            members = [*sample]
            begin, last = members[0].offset, members[-1]
            end = last.offset_data - last.size // -tarfile.BLOCKSIZE * tarfile.BLOCKSIZE  # members fill whole blocks
            yield begin, end - begin, _contents(tar, members, f"{wanted}.")
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        file.seek(tar.offset)  # the end of the members, or what is no head of one
        if (head := file.read(tarfile.BLOCKSIZE)).strip(b"\0") or not head:  # zeros end a tar file
            raise ValueError(f"no member begins at byte {tar.offset:,}" if head else "the end of the file is missing")


def _members(content: bytes) -> Mapping[str, bytes]:
    """Return the members of a sample by their fields, without `tarfile` where their names are short: it is slow."""
    found, begin = dict[str, bytes](), 0
    while begin < len(content):
        head, begin = content[begin : begin + tarfile.BLOCKSIZE], begin + tarfile.BLOCKSIZE
        kind, size = head[156:157], int(head[124:135].rstrip(b"\0"), 8)
        if kind in (tarfile.REGTYPE, tarfile.AREGTYPE):
            found[_split(head[:100].rstrip(b"\0").decode())[1]] = content[begin : begin + size]
        elif kind != tarfile.XHDTYPE or b" path=" in content[begin : begin + size]:
            with tarfile.open(fileobj=BytesIO(content), mode="r:") as tar:
                return _contents(tar, filter(tarfile.TarInfo.isfile, tar))
        begin -= size // -tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
    return found


def _contents(tar: tarfile.TarFile, members: Iterable[Any], wanted: str = "") -> Mapping[str, bytes]:
    """Return the members of a sample by their fields; where some are wanted, the others without their content."""
    found = {_split(own.name)[1]: own for own in members}
    asked = {field: not wanted or wanted.startswith(f"{field}.") for field in found}
    return {field: tar.extractfile(own).read() if asked[field] else b"" for field, own in found.items()}  # type: ignore[union-attr]


def _split(name: str) -> tuple[str, str]:
    """Split the name of a member at the first dot behind its folder."""
    folder, _, own = name.rpartition("/")
    stem, _, field = own.partition(".")
    return f"{folder}/{stem}", field


def _scan_lines(parse: Callable[[bytes], Any], file: IO[bytes], wanted: str) -> Iterator[Row]:
    place = 0
    for line in file:
        yield place, len(line), parse(line)
        place += len(line)


_LINES: Mapping[str, Any] = {".jsonl": parse_object, ".txt": lambda line: {"text": line.decode().rstrip("\r\n")}}


def _scan_groups(file: IO[bytes], wanted: str) -> Iterator[Row]:
    """Go through the groups of rows of a Parquet file, and decode the column that is wanted."""
    from pyarrow.parquet import ParquetFile

    whole = ParquetFile(file)
    for group in range(whole.num_row_groups):
        known = whole.read_row_group(group, [wanted.partition(".")[0]]).to_pylist()
        yield from ((group, at, row) for at, row in enumerate(known))


@lru_cache(8)
def _group(shard: Shard, group: int) -> Any:
    """Decode a group of rows of a Parquet file; those of a window are kept where each has a thousand rows or more."""
    from pyarrow.parquet import ParquetFile

    return ParquetFile(_opened(shard, os.getpid())).read_row_group(group, use_threads=False)


def _of_group(shard: Shard, group: int, at: int) -> Any:
    return _group(shard, group).slice(at, 1).to_pylist()[0]


FORMATS: Mapping[str, tuple[Callable[[IO[bytes], str], Iterator[Row]], Callable[[Shard, int, int], Any]]] = {
    ".tar": (_scan_tar, partial(_read, _members)),
    **{kind: (partial(_scan_lines, parse), partial(_read, parse)) for kind, parse in _LINES.items()},
    ".parquet": (_scan_groups, _of_group),
}
"""By the ending of a shard's name: what finds its rows, and what reads one."""


def find_shards(path: str) -> list[Shard]:
    """Return the shards that a path names, sorted.

    Args:
        path: A file, a folder or a glob, on any file system of fsspec.

    Raises:
        UserError: There are none, or their file system cannot be used.
    """
    try:
        files, whole = url_to_fs(path)
        names = [name for name in files.find(whole) or files.glob(whole) if Path(name).suffix in FORMATS]
        found = [Shard(files.unstrip_protocol(name), str(files.ukey(name))) for name in sorted(names)]
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"cannot be listed: {in_short(error)}", argument="path", received=path) from error
    if not found:
        what, expected = "there is no such shard", f"file, folder or glob of *{', *'.join(FORMATS)}, unpacked (no .gz)"
        raise UserError(what, argument="path", received=path, expected=expected, family="data-not-found")
    return found


def read_index(path: Path, shards: Sequence[Shard]) -> dict[str, np.ndarray]:
    """Read an index; empty where there is none of these shards.

    Returns:
        `places` `(N, 2)`, the two numbers of each row; `targets` `(N,)`, or none; `shards` `(S, 2)`; `rows` `(S,)`.
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
        rows: Lists the two numbers and the target of each row of a shard.

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
            first, second, targets = zip(*rows(shard), strict=True)
            places.append(np.array([first, second]).T)
            values += targets
    problems.raise_any()
    plain = {type(value) for value in values} in ({bool}, {int}, {float}, {int, float}, {str})
    found = {"targets": values if plain else [], "shards": shards, "rows": [len(own) for own in places]}
    return {"places": np.concatenate(places)} | {name: np.array(own) for name, own in found.items()}


class Stream:
    """Rows of shards, each read by itself from its place, which an index knows.

    Args:
        path: The shards: a file, folder or glob on any file system of fsspec, or one for each split by its name.
        target: The field to predict; `json.label` is an entry of one. None gives samples without target.
        fields: The fields to predict from; None takes all others. Several make a dict.
        classes: Names of the classes in order, or their number; None takes those that there are.
        size: Pixels a side of images: the middle square, scaled; None leaves them.
        decode: By field, a function of its content, or the ending of a file with such content (`jpg`).

    Raises:
        UserError: Shards are missing or damaged, a row lacks its target, or a class is none of those named.
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
        self._fields, self._target, self._decode = fields, target or "", decode or {}
        image = partial(read_image, size=size, channels=3)
        self._decoders = {**dict.fromkeys(SUFFIXES, lambda content: image(BytesIO(content))), **_DECODERS}
        self.classes: Any = [*map(str, range(classes))] if isinstance(classes, int) else [*(classes or ())]
        paths = path if isinstance(path, Mapping) else {"": path}
        found = [find_shards(own) for own in paths.values()]
        self.sources = self._shards = [shard for own in found for shard in own]
        file = f"{fingerprint([self._shards[0].url, *paths.values(), target, classes])}.index.npz"
        index = make_index((user_state() or Path(gettempdir())) / "streams" / file, self._shards, self._rows)
        self._places, targets, ends = index["places"], index["targets"], np.cumsum([0, *index["rows"]])
        self.shards, self._starts = torch.from_numpy(ends[:-1]), ends[:-1].tolist()
        cuts = ends[np.cumsum([0, *map(len, found)])].tolist()
        self.splits = {split: range(*cut) for split, cut in zip(paths, pairwise(cuts), strict=True) if split}
        if targets.dtype.kind == "U":
            self.classes, targets = np.unique(targets, return_inverse=True)
        self.targets = torch.from_numpy(targets.astype("int64" if targets.dtype.kind in "bi" else "float32"))
        mark = fingerprint([index["rows"], torch.from_numpy(self._places), self.targets, size, fields])
        self.info = replace(SampleData(self).info, fingerprint=mark)

    def _rows(self, shard: Shard) -> list[tuple[int, int, Any]]:
        found, (files, name) = list[tuple[int, int, Any]](), url_to_fs(shard.url)
        try:
            with files.open(name) as file:
                for first, second, known in FORMATS[Path(name).suffix][0](file, self._target):
                    found.append((first, second, self._label(known) if self._target else None))
            if not found:
                raise ValueError("it is empty")
        except _BROKEN as error:
            raise shard.error(len(found), error) from error
        return found

    def __len__(self) -> int:
        return len(self._places)

    def place_of(self, row: int) -> str:
        """Return the row of a shard and its name, for messages."""
        number = bisect_right(self._starts, row) - 1
        return f"{row - self._starts[number] + 1:,} of {Path(self._shards[number].url).name}"

    def __getitem__(self, row: int) -> Any:
        place, number = self._places[row].tolist(), bisect_right(self._starts, row) - 1
        shard = self._shards[number]
        try:
            content = FORMATS[shard.url[shard.url.rindex(".") :]][1](shard, *place)
            names = self._fields or [name for name in content if name != self._target.partition(".")[0]]
            values = {name: self._picked(content, name) for name in ([names] if isinstance(names, str) else names)}
            sample = next(iter(values.values())) if len(values) == 1 else values
            known = self.targets.numpy()[row].item() if self.targets.numel() else self._target and self._label(content)
            return (sample, known) if self._target else sample
        except _BROKEN as error:
            raise shard.error(row - self._starts[number], error) from error

    def _label(self, content: Mapping[str, Any]) -> Any:
        value = self._picked(content, self._target)
        known = range(len(self.classes)) if isinstance(value, int) else self.classes
        if value is None or (self.classes and value not in known):
            raise ValueError(f"its target is missing, or none of data.dataset.classes: {value!r}")
        return known.index(value) if self.classes else value

    def _picked(self, content: Mapping[str, Any], name: str) -> Any:
        """Return a field, or an entry of one, decoded."""
        field, _, key = (name, "", "") if name in content else name.rpartition(".")
        if field not in content:
            raise ValueError(f"there is no field {name!r} among {', '.join(content)}")
        value = self._decoded(field, content[field])
        return self._decoded(name, value[key]) if key else value

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
