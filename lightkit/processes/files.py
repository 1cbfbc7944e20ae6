"""Files that a crash leaves as they were or whole, never half, what forces them to disk, and the user's own folder."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, *, scratch: str | None = None, forced: bool = False) -> Iterator[Path]:
    """Yield a second name, and give the file that was written under it the first one; where that fails, nothing stays.

    Args:
        path: The file to make or replace, in an existing folder.
        scratch: The second name, in the same folder. A left-over or a link of that name goes first. None takes one that
            no other process has.
        forced: Wait until file and name are on the disk.

    Raises:
        OSError: The disk is full, or the folder cannot be written; `path` is as it was.
    """
    unfinished = path.with_name(scratch or f".{path.name}.{secrets.token_hex(4)}")
    with suppress(OSError):  # whoever opens it is told why it cannot
        unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        if forced:
            _sync(unfinished, os.O_RDWR)
        unfinished.replace(path)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    if forced:
        sync_folder(path.parent)


def write_whole(path: Path | str, content: str | bytes, *, scratch: str | None = None, forced: bool = False) -> None:
    """Write a file so that a crash leaves either the old or the new one.

    Args:
        path: The file, in an existing folder.
        content: All of it.
        scratch: See `replacing`.
        forced: See `replacing`.

    Raises:
        OSError: It cannot be written; one of that name is as it was.
    """
    with replacing(Path(path), scratch=scratch, forced=forced) as unfinished, unfinished.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def put_in_place(made: Path, path: Path) -> None:
    """Give what is whole and on the disk its name, for good; what had it before is gone.

    Raises:
        OSError: It cannot be renamed; both are as they were.
    """
    made.replace(path)
    sync_folder(path.parent)


def sync_file(path: Path | str) -> None:
    """Force a file and its name to the disk; one that is not there is nothing to lose.

    It is opened for that, as whoever writes to it may close it meanwhile.

    Args:
        path: The file.

    Raises:
        OSError: The disk is full or broken.
    """
    with suppress(FileNotFoundError):
        _sync(path, os.O_RDWR)
        sync_folder(Path(path).parent)


def sync_folder(folder: Path) -> None:
    """Force the folder's list of names to the disk; a rename is lost in a power cut otherwise."""
    if os.name == "nt":
        return  # Windows cannot open a folder, and needs no such call
    try:
        _sync(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such call
            raise


def _sync(path: Path | str, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
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
