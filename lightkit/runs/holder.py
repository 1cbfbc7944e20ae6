"""Which process holds a lock, asked of the kernel: what the file of a lock says, anybody can have written."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO

PROC = Path("/proc")
_HELD = re.compile(r"^lock:.*\bFLOCK\b.*\bWRITE\b", re.M)
"""A line of what Linux tells of an open file."""


def open_lock(path: Path) -> FileIO:
    """Open the file of a lock to look at it.

    Raises:
        OSError: There is none, or it is a link or no file: then it would be the lock of something else.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe would be waited for
    file = FileIO(os.open(path, flags))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is no file")
    return file


def holder_of(file: IO[bytes] | FileIO, told: int | None, *, is_locked: bool) -> int | None:
    """Return the number of the process that holds a lock; None where it is none of this machine, or nobody knows.

    Args:
        file: The file of the lock.
        told: Number of the process that the file names.
        is_locked: Whether somebody has locked it; False where the file system has no locks, and the process that works
            there only keeps the file open.
    """
    facts = os.fstat(file.fileno())
    if facts.st_nlink > 1:
        return None  # it is also the lock of another folder
    listed = _listed(facts) if is_locked else []
    if listed:
        return told if told in listed else listed[0]
    # Other systems than Linux do not say which files a process has open: there the file is believed.
    if told is not None and (not PROC.is_dir() or any(_held_files(told, facts, is_locked=is_locked))):
        return told
    return None


def _listed(facts: os.stat_result) -> list[int]:
    """Return the processes that the kernel lists for a file; none where the file system numbers files otherwise."""
    found = []
    place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    with suppress(OSError):
        for line in (PROC / "locks").read_text(encoding="ascii", errors="replace").splitlines():
            # number, kind, how it is meant, right, process, device and file, first byte, last
            words = line.split()
            if len(words) > 5 and (words[1], words[3], words[5]) == ("FLOCK", "WRITE", place) and words[4].isdecimal():
                found.append(int(words[4]))
    return found


def _held_files(process: int, facts: os.stat_result, *, is_locked: bool) -> Iterator[Path]:
    """Yield where a process has a file open, and locked where files can be."""
    with suppress(OSError):
        for link in (PROC / str(process) / "fd").iterdir():
            with suppress(OSError):
                there = link.stat()
                if (there.st_dev, there.st_ino) != (facts.st_dev, facts.st_ino):
                    continue
                locks = (PROC / str(process) / "fdinfo" / link.name).read_text(encoding="ascii") if is_locked else ""
                if not is_locked or _HELD.search(locks):
                    yield link
