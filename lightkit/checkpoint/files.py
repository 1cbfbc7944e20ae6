"""Writing files so that a crash at any moment leaves the old one or the new one, never a broken one.

A checkpoint holds tensors and plain types. Anything else would need its own code to be loaded again, which
`torch.load(weights_only=True)` rightly refuses.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import torch

from lightkit.processes.files import put_in_place

_BLOCK_BYTES = 1 << 20


class HashingFile:
    """A file to write to that counts and hashes what passes, and keeps an error for later.

    `torch.save` ends in a second, misleading error when a write fails under it, so after a failure the rest is thrown
    away quietly and `finish` raises the first error.

    Args:
        raw: The binary file that is written to.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._hash = raw, hashlib.sha256()
        self.count_bytes = 0
        self._error: BaseException | None = None

    def write(self, data: Any) -> int:
        """Take bytes; returns how many."""
        size = memoryview(data).nbytes
        if self._error is None:
            try:
                self._raw.write(data)
                self._hash.update(data)
                self.count_bytes += size
            except BaseException as error:
                self._error = error
        return size

    def flush(self) -> None:
        """Do nothing: `finish` flushes."""

    def finish(self) -> str:
        """Force everything to the disk and return the SHA-256 in hex.

        Raises:
            OSError: The first write that failed, or the flush; also what a signal handler raised meanwhile.
        """
        if self._error is not None:
            raise self._error
        self._raw.flush()
        os.fsync(self._raw.fileno())
        return self._hash.hexdigest()


class Draft:
    """A file that is whole and on the disk, and only has to get its name.

    Args:
        path: The name it will get.
        unfinished: The name it has.
        sha256: Its checksum, in hex.
        count_bytes: Its size.
    """

    def __init__(self, path: Path, unfinished: Path, sha256: str, count_bytes: int) -> None:
        self.path, self.sha256, self.count_bytes = path, sha256, count_bytes
        self._unfinished = unfinished

    def publish(self) -> None:
        """Give it its name, for good.

        Raises:
            OSError: It cannot be renamed; it is gone then, and `path` is as it was.
        """
        try:
            put_in_place(self._unfinished, self.path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Delete it if it has not got its name."""
        with contextlib.suppress(OSError):
            self._unfinished.unlink()


def draft(path: Path, fill: Callable[[IO[bytes]], object], *, scratch: str) -> Draft:
    """Write a file under another name and force it to the disk.

    Args:
        path: The file to make or replace.
        fill: Writes the content.
        scratch: Name of the unfinished file in the same folder. A left-over of that name is replaced, so that
            crashes don't pile up files.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    unfinished = path.with_name(scratch)
    try:
        try:
            raw = unfinished.open("xb")
        except FileExistsError:  # never into a left-over, or what a link of that name leads to
            unfinished.unlink()
            raw = unfinished.open("xb")
        with raw:
            target = HashingFile(raw)
            fill(cast("IO[bytes]", target))
            digest = target.finish()
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    return Draft(path, unfinished, digest, target.count_bytes)


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


_SCALARS = frozenset({type(None), bool, int, float, str})
_KEYS = frozenset({str, int})

Take = Callable[[torch.Tensor, str], torch.Tensor]
"""What becomes of a tensor, which has to be detached; the text is its key path."""


def compact(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """Return the tensor itself, detached, or a copy of it where it is part of a larger storage."""
    tensor = tensor.detach()
    if tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
        return tensor.clone()  # torch.save writes the whole storage, also for a view of ten rows
    return tensor


def to_plain(value: Any, *, where: str = "checkpoint", take: Take = compact) -> Any:
    """Copy nested content with bare tensors: detached, and without the unused rest of a larger storage.

    The tensors share memory with the originals where they can.

    Args:
        value: Nested dicts, lists and tuples of tensors and plain values.
        where: Name of `value` in error messages.
        take: Called with every tensor and its key path; its result takes the tensor's place.

    Raises:
        TypeError: Something of another type is in it; the message names its key path.
    """
    kind = type(value)
    if kind in _SCALARS or (kind is bytes and value):  # torch.load refuses a file with empty ones
        return value
    if isinstance(value, torch.Tensor):
        if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise TypeError(f"{where} is a {kind.__name__}; convert it to a plain tensor in `state_dict()`")
        return take(value, where)
    # Most items are numbers and text: asked for here, as a call and a key path for each would be most of the work.
    if isinstance(value, dict) and kind.__name__ in ("dict", "OrderedDict"):
        return {
            key if type(key) in _KEYS else _refuse_key(key, where): item
            if type(item) in _SCALARS
            else to_plain(item, where=f"{where}.{key}", take=take)
            for key, item in value.items()
        }
    if kind in (list, tuple):
        return kind(
            item if type(item) in _SCALARS else to_plain(item, where=f"{where}[{index}]", take=take)
            for index, item in enumerate(value)
        )
    if kind is bytes:
        raise TypeError(f"{where} is empty bytes, which torch.load refuses; save None or text in `state_dict()`")
    raise TypeError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint holds tensors, numbers, text, lists, tuples "
        "and dicts only: convert it in `state_dict()`"
    )


def _refuse_key(key: Any, where: str) -> Any:
    raise TypeError(f"{where} has the key {key!r} of type {type(key).__qualname__}; keys are text or whole numbers")
