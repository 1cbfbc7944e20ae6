"""Files of other formats that are handed in as weights: which they are, and how weights are got out of them."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import NamedTuple


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
_PARTS = {
    "constants.pkl": _SCRIPT,
    "archive_format": _EXPORTED,
    "extern_modules": _PACKAGE,
}
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
        found = next((foreign for start, foreign in _HEADS.items() if head.startswith(start)), None)
        return found or (_ARRAYS if head[1:6] == b"NUMPY" else _ONNX if path.suffix == ".onnx" else None)
    return None


def _of_archive(path: Path) -> Foreign | None:
    with zipfile.ZipFile(path) as archive:
        names = [name.rpartition("/")[2] for name in archive.namelist()]
    if "data.pkl" in names and "constants.pkl" not in names:
        return None
    found = next((foreign for part, foreign in _PARTS.items() if part in names), None)
    if found is None and names:
        return _ARRAYS if all(name.endswith(".npy") for name in names) else None
    return found
