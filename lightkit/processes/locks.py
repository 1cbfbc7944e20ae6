"""The kernel's locks of open files: free as soon as their holder is gone, however it went.

Not `lockf`: such a lock ends as soon as anything in this process reads the file, a backup for instance.
"""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from functools import partial
from io import FileIO
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""Whether this system has such locks."""
_TAKEN = (errno.EACCES, errno.EAGAIN)


def take(file: IO[bytes]) -> bool:
    """Lock a file for this process alone, until it is closed; a process that is forked meanwhile gives it up.

    Returns:
        False where another process holds it; True also where system or file system have no locks.
    """
    if not HAS_LOCKS:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
    # In a worker that outlives the run the lock would live on.
    os.register_at_fork(after_in_child=partial(_close, weakref.ref(file)))
    return True


def is_taken(file: IO[bytes] | FileIO) -> bool | None:
    """Tell whether another process holds a lock, which is not kept; None where there are no locks."""
    if not HAS_LOCKS:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in _TAKEN else None
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def wait_until_free(file: IO[bytes] | FileIO) -> None:
    """Let the kernel wake this process when nobody holds a lock any more; return at once where there are no locks.

    Raises:
        OSError: The file system has none.
    """
    if HAS_LOCKS:
        fcntl.flock(file, fcntl.LOCK_SH)


def _close(file: weakref.ref[IO[bytes]]) -> None:
    if (held := file()) is not None:
        with suppress(OSError):
            held.close()
