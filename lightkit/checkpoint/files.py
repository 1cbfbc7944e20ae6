"""Writing files so that a crash at any moment leaves the old one or the new one, never a broken one."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

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


def draft(path: Path, fill: Callable[[HashingFile], object], *, scratch: str) -> Draft:
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
            fill(target)
            digest = target.finish()
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    return Draft(path, unfinished, digest, target.count_bytes)


def write_atomically(path: Path, fill: Callable[[HashingFile], object], *, scratch: str) -> tuple[str, int]:
    """Write a file under another name, force it to the disk, then give it its name; the arguments are `draft`'s.

    Returns:
        SHA-256 in hex and size in bytes.

    Raises:
        OSError: The disk is full, or the folder cannot be written; `path` is as it was.
    """
    made = draft(path, fill, scratch=scratch)
    made.publish()
    return made.sha256, made.count_bytes


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
