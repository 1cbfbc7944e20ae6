"""Following a file that another process writes to, in whole lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from lightkit.common.reading import UnreadableError, opened

_BLOCK = 65536


class Lines:
    """Reads a file that grows, in whole lines; one that is written anew is read from its beginning.

    Args:
        path: The file; it need not be there yet.
        last: Lines at its end with which to begin; None for all.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self.path = path
        self._inode, self._offset, self._torn = 0, 0, b""
        if last is not None:
            try:
                with opened(path) as file:
                    self._inode, self._offset = os.fstat(file.fileno()).st_ino, _beginning(file, last)
            except (OSError, UnreadableError):
                pass

    def new(self, *, torn: bool = False) -> list[str]:
        """Return the lines since the last call.

        Args:
            torn: Also a last line that has no end, as nobody goes on with it.
        """
        data = self._read()
        self._offset += len(data)
        *whole, self._torn = (self._torn + data).split(b"\n")
        if torn and self._torn:
            whole.append(self._torn)
            self._torn = b""
        return [line.decode(errors="replace").removesuffix("\r") for line in whole]

    def _read(self) -> bytes:
        """Return what is new; a look at a file without news costs no opening."""
        try:
            facts = self.path.stat()
            if (facts.st_ino, facts.st_size) == (self._inode, self._offset):
                return b""
            with opened(self.path) as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:
                    self._inode, self._offset, self._torn = facts.st_ino, 0, b""
                file.seek(self._offset)
                return file.read()
        except (OSError, UnreadableError):
            return b""


def _beginning(file: IO[bytes], last: int) -> int:
    """Return where the last lines of a file begin."""
    size = place = file.seek(0, os.SEEK_END)
    text = b""
    while place > 0 and text.removesuffix(b"\n").count(b"\n") < last:
        start = max(0, place - _BLOCK)
        file.seek(start)
        text, place = file.read(place - start) + text, start
    body = text.removesuffix(b"\n")
    kept = body.split(b"\n")[-last:] if last else []
    return size - len(b"\n".join(kept)) - (len(text) - len(body) if kept else 0)
