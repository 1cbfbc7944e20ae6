"""How much memory a file may take: no more than its own size explains. Files that others made can be built to take all.

`torch.save` writes every number it stores, without compression. So an archive that unpacks to more than its size, a
tensor that repeats a few numbers by its strides, or lists within lists within lists are not what it has written.
"""

from __future__ import annotations

import argparse
import contextlib
import pickletools
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

_ROOM_BYTES = 64 << 20
_TIMES = 4
"""Tensors may be this many times as large as the file, and `_ROOM_BYTES` more: some masks are one row, repeated."""
_MOST_OBJECTS = 2_000_000
"""Tensors, lists and the like in a file; a tensor is about eight of them."""
_DEEPEST = 100
_LEGACY_PICKLES = 5
_MAKING = {
    *("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE", "LIST", "DICT", "FROZENSET"),
    *("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "BINPERSID", "PERSID"),
}


class ExcessError(Exception):
    """A file would take more memory than its size explains; the message says how."""


def check_archive_size(path: Path) -> None:
    """Refuse an archive that unpacks to more than it is, or whose pickle makes too many objects; nothing is unpacked.

    Raises:
        ExcessError: It would take too much.
        zipfile.BadZipFile: It is no archive.
        OSError: It cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        parts, size = archive.infolist(), path.stat().st_size
        unpacked = sum(part.file_size for part in parts)
        if unpacked > size:
            raise ExcessError(f"it unpacks to {unpacked:,} bytes, but has {size:,}")
        for part in parts:
            if part.filename.endswith(".pkl") and part.file_size > _MOST_OBJECTS:  # each takes a byte at least
                with archive.open(part) as stream:
                    _count_objects(stream, 1)


def check_pickle_size(path: Path) -> None:
    """Refuse a file of the layout before archives whose pickles make too many objects.

    Raises:
        ExcessError: It would take too much.
        OSError: It cannot be read.
    """
    if path.stat().st_size > _MOST_OBJECTS:
        with path.open("rb") as stream:
            _count_objects(stream, _LEGACY_PICKLES)


def _count_objects(stream: IO[bytes], pickles: int) -> None:
    making = (code[0].name in _MAKING for _ in range(pickles) for code in pickletools.genops(stream))
    try:
        for count, _ in enumerate(filter(None, making), 1):
            if count > _MOST_OBJECTS:
                raise ExcessError(f"it makes more than {_MOST_OBJECTS:,} objects")
    except ValueError:  # not a pickle, or one that is cut off: whoever opens it says so
        return


def check_content(content: Any, size: int) -> None:
    """Refuse what was read from a file where using it would take far more memory than the file.

    Args:
        content: Tensors and plain types, nested.
        size: Bytes of the file.

    Raises:
        ExcessError: It would take too much.
    """
    room, taken, count = _TIMES * size + _ROOM_BYTES, 0, 0
    known: set[Any] = set()
    waiting: list[tuple[int, Iterable[Any]]] = [(0, [content])]
    while waiting:
        depth, items = waiting.pop()
        if depth > _DEEPEST:
            raise ExcessError(f"its lists are nested more than {_DEEPEST} deep")
        for item in items:
            count += 1
            place, needed = _size(item)
            taken += 0 if place in known else needed
            known.add(place)
            if taken > room:
                raise ExcessError(f"its tensors say to have more than {room:,} bytes, but it has {size:,}")
            if count > _MOST_OBJECTS:
                raise ExcessError(f"it has more than {_MOST_OBJECTS:,} entries")
            inside = _inside(item)
            if inside:
                waiting.append((depth + 1, inside))


def _size(item: Any) -> tuple[Any, int]:
    """Return where the numbers of a tensor are, so that tied ones count once, and the bytes of its elements."""
    if isinstance(item, torch.Tensor):
        if item.layout is not torch.strided:
            return id(item), item.numel() * item.element_size()
        return (item.data_ptr(), item.shape, item.stride(), item.dtype), item.numel() * item.element_size()
    return id(item), len(item) if isinstance(item, (bytes, bytearray, str)) else 0


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, Mapping):
        return [*item, *item.values()]
    if isinstance(item, argparse.Namespace):
        return list(vars(item).values())
    return item if isinstance(item, (list, tuple, set, frozenset)) and not isinstance(item, torch.Size) else ()


class Foreign(NamedTuple):
    """A format that holds no weights as they are read here."""

    what: str
    """What the file is."""
    fix: str
    """How weights that can be read are made of it."""


_SAVE = "torch.save(model.state_dict(), 'weights.pt')"
_SCRIPT = Foreign(
    "it is a TorchScript program, which holds code",
    "if you trust where it comes from, open it in a script of your own by torch.jit.load, with map_location='cpu'; "
    f"then {_SAVE}, and take weights.pt",
)
_EXPORTED = Foreign(
    "it is a program of torch.export, which holds code",
    "in a script of your own, if you trust where the file comes from: program = torch.export.load(FILE), then "
    "torch.save(program.state_dict, 'weights.pt'); take weights.pt",
)
_PACKAGE = Foreign("it is an archive of torch.package, which holds code", f"where it was made: {_SAVE}")
_ARRAYS = Foreign(
    "it holds arrays of NumPy",
    "torch.save({name: torch.from_numpy(array) for name, array in numpy.load(FILE).items()}, 'weights.pt')",
)
_KERAS = Foreign("it is an HDF5 file, as Keras writes", "weights of PyTorch: convert them, as layers differ")
_GGUF = Foreign("it is a GGUF file, of llama.cpp", "take the model's safetensors from where it was published")
_ONNX = Foreign("it is an ONNX graph", f"where it was exported: {_SAVE}")
_ZIPPED = Foreign("it is compressed", "unpack it first: gunzip, tar -xzf, unzip")
_HEADS = {b"\x89HDF": _KERAS, b"GGUF": _GGUF, b"\x1f\x8b": _ZIPPED, b"BZh": _ZIPPED, b"\xfd7zXZ": _ZIPPED}
_PARTS = {"constants.pkl": _SCRIPT, "archive_format": _EXPORTED, "extern_modules": _PACKAGE}
"""Formats by the name of a part of their archive."""


def foreign_format(path: Path) -> Foreign | None:
    """Tell which format of others a file has, by its first bytes and the names in it; None where it has none of them.

    Nothing of it is unpacked or run.
    """
    with contextlib.suppress(OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        with path.open("rb") as file:
            head = file.read(8)
        if head[:4] == b"PK\x03\x04":
            return _of_archive(path)
        known = next((foreign for start, foreign in _HEADS.items() if head.startswith(start)), None)
        return known or (_ARRAYS if head[1:6] == b"NUMPY" else _ONNX if path.suffix == ".onnx" else None)
    return None


def _of_archive(path: Path) -> Foreign | None:
    with zipfile.ZipFile(path) as archive:
        names = [name.rpartition("/")[2] for name in archive.namelist()]
    if "data.pkl" in names and "constants.pkl" not in names:
        return None
    known = next((foreign for part, foreign in _PARTS.items() if part in names), None)
    if known is None and names:
        return _ARRAYS if all(name.endswith(".npy") for name in names) else None
    return known
