"""The lock of a run folder: one process at a time runs in it."""

from __future__ import annotations

import errno
import os
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from lightkit.common import run_files
from lightkit.common.errors import UserError

_TAKEN = (errno.EACCES, errno.EAGAIN)
_TRIES, _TRY_SECONDS = 5, 0.01


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder while inside.

    It goes with the process that holds it, however that ends; worker processes give it up.

    Args:
        folder: An existing folder.

    Raises:
        UserError: Another process runs in it.
        OSError: The file of the lock cannot be made or written.
    """
    with open(folder / run_files.LOCK, "a+b", buffering=0, opener=_without_links) as file:
        _lock(file, folder)
        yield


def lock_holder(folder: Path) -> str | None:
    """Return which process runs in a folder, such as `process 4711 on host`; None where none does, or nobody knows."""
    with suppress(OSError, ImportError):
        import fcntl

        with (folder / run_files.LOCK).open("rb", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                return _holder(file) if error.errno in _TAKEN else None
    return None


def _lock(file: IO[bytes], folder: Path) -> None:
    """Lock a file and write into it who has done so; where there are no locks, do nothing."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    for tries_left in reversed(range(_TRIES)):
        try:
            # Not `lockf`: that lock ends as soon as anything in this process reads the file, a backup for instance.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in _TAKEN:
                return  # a file system without locks
            if not tries_left:
                fix = "wait for it or end it; `lightkit runs` lists the runs"
                raise UserError(f"{_holder(file)} is running in this folder", key=str(folder), fix=fix) from error
            time.sleep(_TRY_SECONDS)  # somebody may only have asked who holds it
    os.register_at_fork(after_in_child=partial(_close, weakref.ref(file)))
    if os.fstat(file.fileno()).st_nlink > 1:
        return  # it is another file, too, whose content is not ours
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip() or "another process"


def _close(file: weakref.ref[IO[bytes]]) -> None:
    """Give a lock up in a forked process, where it would live on in a worker that outlives the run."""
    held = file()
    if held is not None:
        held.close()


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
