"""Forcing what was written to the disk, so that a power cut cannot take it back."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def sync_file(path: Path | str) -> None:
    """Force a file and its name to the disk; one that is not there is nothing to lose.

    It is opened for that, as whoever writes to it may close it meanwhile.

    Args:
        path: The file.

    Raises:
        OSError: The disk is full or broken.
    """
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_folder(Path(path).parent)


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
