"""Opening a file of weights, whoever wrote it. Nothing in it is run, unless the caller trusts it."""

from __future__ import annotations

import argparse
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from lightkit.checkpoint.bounds import ExcessError, check_content, check_pickle_size, foreign_format
from lightkit.checkpoint.reading import DamagedError, check_bytes, entry_of, reason
from lightkit.common.errors import UNREADABLE, UserError
from lightkit.common.failures import is_out_of_memory

SAFETENSORS, ARCHIVE, PICKLE = "safetensors", "archive", "pickle"
_PLAIN_CLASSES: list[Any] = [argparse.Namespace]
"""Classes taken from a file besides tensors and plain types: a bag of attributes that runs nothing, in which training
scripts (timm) keep their options."""


def kind_of(path: Path) -> str:
    """Tell how a file is laid out, by its first bytes.

    Raises:
        UserError: It is missing, or none of the known kinds (exit code 5).
    """
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise unreadable(path, reason(error)) from error
    if head[:4] == b"PK\x03\x04":
        return ARCHIVE
    if head[4:] == b"\0\0\0\0{":  # the size of the header, and its first byte; also of a file that is cut off in it
        return SAFETENSORS
    if head[:1] == b"\x80":
        return PICKLE
    _refuse_foreign(path)
    what = "the file is empty" if not head else "it is neither a safetensors file nor one written by torch.save"
    raise unreadable(path, what)


def open_file(path: Path, *, trust: bool = False, asked: str = "") -> Any:
    """Read the content of a file, tensors on the CPU.

    Args:
        path: A file of `torch.save` or safetensors.
        trust: Run the code that a pickle of whole objects holds. Only for files whose origin is known.
        asked: What stands before `trust` where a user gives it, for the message: `finetune.weights.`.

    Raises:
        UserError: It is missing, damaged or of another kind, or it holds code and is not trusted (exit code 5).
    """
    kind = kind_of(path)
    if kind == SAFETENSORS:
        return _open_safetensors(path)
    if kind == ARCHIVE:
        _refuse_foreign(path)
        _check_archive(path)
    try:
        if trust:  # the only place where a file may run code, as the caller has said so for this very file
            with path.open("rb") as file:
                return torch.load(file, map_location="cpu", weights_only=False)
        return _open_plain(path, kind)
    except ExcessError as error:
        raise unreadable(path, f"it would take too much memory: {error}") from error
    except pickle.UnpicklingError as error:
        raise unreadable(path, reason(error)) if trust else _holds_code(path, asked) from error
    except Exception as error:  # a damaged pickle calls what it may call with anything
        if is_out_of_memory(error):
            raise
        raise unreadable(path, reason(error)) from error


def unreadable(path: Path, why: str) -> UserError:
    """Make the error of a file that cannot be read."""
    return UserError(f"no weights can be read from it: {why}", key=str(path), exit_code=UNREADABLE)


def _refuse_foreign(path: Path) -> None:
    foreign = foreign_format(path)
    if foreign is not None:
        raise UserError(foreign.what, key=str(path), fix=foreign.fix, exit_code=UNREADABLE)


def _open_plain(path: Path, kind: str) -> Any:
    if kind == PICKLE:
        check_pickle_size(path)
    # An open file, not its path: by the name alone torch would take it for something else than its bytes say.
    with path.open("rb") as file, torch.serialization.safe_globals(_PLAIN_CLASSES), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected pickle protocol")  # what cannot be read is told anyway
        content = torch.load(file, map_location="cpu", weights_only=True)
    check_content(content, path.stat().st_size)
    return content


def _open_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise unreadable(path, reason(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read the tensors of a file by name, and the facts about them.

    Raises:
        SafetensorError: It is no such file, or damaged.
        OSError: It cannot be read.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as content:
        return {name: content.get_tensor(name) for name in content.keys()}, content.metadata() or {}  # noqa: SIM118


def _check_archive(path: Path) -> None:
    try:
        check_bytes(path, entry_of(path))
    except DamagedError as error:
        raise unreadable(path, str(error)) from error


def _holds_code(path: Path, asked: str) -> UserError:
    option = f"{asked}trust=true" if asked else "trust=True (--trust)"
    try:
        with path.open("rb") as file:
            names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # files of older versions cannot be asked
        names = []
    return UserError(
        "the file holds Python objects, which run code when they are opened; it was not opened"
        + (f" (it asks for {', '.join(names[:5])})" if names else ""),
        key=str(path),
        fix=f"save the model's `state_dict()` where the file comes from; if you trust its origin: {option}",
        exit_code=UNREADABLE,
    )


def shards(index: Path) -> list[Path]:
    """List the files that an index of Hugging Face's layout names.

    Raises:
        UserError: It cannot be read, or a name leads out of its folder (exit code 5).
    """
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(index, f"not an index of weights ({reason(error)})") from error
    outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if outside:
        raise unreadable(index, f"it names {outside[0]!r}, which is not a file beside it")
    return [index.with_name(name) for name in names]
