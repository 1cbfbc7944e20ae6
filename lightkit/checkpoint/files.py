"""Writing files so that a crash at any moment leaves the old one or the new one, never a broken one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

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
        """Nothing: `finish` flushes."""

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


def write_atomically(path: Path, fill: Callable[[HashingFile], object], *, scratch: str) -> tuple[str, int]:
    """Write a file under another name, force it to the disk, then give it its name.

    Args:
        path: The file to make or replace.
        fill: Writes the content.
        scratch: Name of the unfinished file in the same folder. A left-over of that name is overwritten, so that
            crashes don't pile up files.

    Returns:
        SHA-256 in hex and size in bytes.

    Raises:
        OSError: The disk is full, or the folder cannot be written; `path` is as it was.
    """
    unfinished = path.with_name(scratch)
    try:
        with unfinished.open("wb") as raw:
            target = HashingFile(raw)
            fill(target)
            digest = target.finish()
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    sync_folder(path.parent)
    return digest, target.count_bytes


def sync_folder(folder: Path) -> None:
    """Force the folder's list of names to the disk; a rename is lost in a power cut otherwise."""
    if os.name == "nt":
        return  # Windows cannot open a folder, and needs no such call
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such call
            raise
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
