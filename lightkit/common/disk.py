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


def user_state() -> Path | None:
    """Return lightkit's folder below `$XDG_STATE_HOME` or `~/.local/state`; None where there is no home.

    It need not exist.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (named if named.is_absolute() else Path.home() / ".local" / "state") / "lightkit"
    except RuntimeError:  # this user has no home
        return None


def make_user_state(state: Path) -> Path:
    """Make the folder that `user_state` gave, for this user alone, and return it.

    Raises:
        OSError: It cannot be made.
    """
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700)
    except FileExistsError:
        if not state.is_dir():
            raise
    return state


def belongs_to_us(facts: os.stat_result) -> bool:
    """Tell whether this user owns a file or folder; where a system knows no owners, everybody does."""
    return not hasattr(os, "geteuid") or facts.st_uid == os.geteuid()
