"""Files that processes share: written whole or not at all, forced to the disk, locked, and followed while they grow.

The locks are the kernel's, of open files: free as soon as their holder is gone, however it went. Not `lockf`: such a
lock ends as soon as anything in this process reads the file, a backup for instance.
"""

from __future__ import annotations

import errno
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import IO, Any

from lightkit.common.reading import UnreadableError, opened

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HAS_LOCKS = fcntl is not None
"""Whether this system has such locks."""
_TAKEN = (errno.EACCES, errno.EAGAIN)
_BLOCK = 65536
"""Bytes that are read at once to find the last lines of a file."""
FRESH_SECONDS = 2.0
"""Time after which a further change of a file shows in the time of its last change, on any file system."""
_UNUSED_SECONDS = 30 * 86400.0
"""Time after which a copy that nobody has used goes."""


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
    unfinished = path.with_name(scratch or f".{path.name}.{os.urandom(4).hex()}")
    if scratch:
        with suppress(OSError):  # whoever opens it is told why it cannot
            unfinished.unlink()
    try:
        yield unfinished
        if forced:
            _sync(unfinished, os.O_RDWR)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
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


def without_links(path: Path | str, flags: int) -> int:
    """Open a file, which `open` makes where there is none, but not what a link leads to: for its `opener`.

    Raises:
        OSError: It is a link, or cannot be opened.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


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
    return _user_folder("XDG_STATE_HOME", ".local/state")


def user_cache() -> Path | None:
    """Return lightkit's folder below `$XDG_CACHE_HOME` or `~/.cache`, which may be deleted; None without a home."""
    return _user_folder("XDG_CACHE_HOME", ".cache")


def file_marks(files: Iterable[Path | str]) -> tuple[list[list[int]], float]:
    """Return what changes when files do, and how many seconds ago the last of them changed (see `FRESH_SECONDS`).

    Raises:
        OSError: One is not there.
    """
    marks = [[one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino] for one in map(os.stat, files)]
    return marks, time.time() - max((max(own[1:3]) for own in marks), default=0) / 1e9


def cache_file(kind: str, what: Any, mark: Any) -> Path:
    """Return the file of a copy in the user's cache folder, which is empty where it is new.

    Copies of the same thing as it was before go, and those that nobody has used for 30 days.

    Args:
        kind: Name of the folder.
        what: What it is a copy of, in plain values.
        mark: What changes when that does, in plain values.

    Raises:
        OSError: It cannot be made.
    """
    names = [blake2b(repr(own).encode(), digest_size=16).hexdigest() for own in (what, mark)]
    folder = (user_cache() or Path(os.devnull)) / kind
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (path := folder / "-".join(names)).touch(0o600)
    for other in folder.iterdir():
        with suppress(FileNotFoundError):
            before = other.name.startswith(names[0]) and other != path
            if before or time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                other.unlink()
    return path


def _user_folder(variable: str, usual: str) -> Path | None:
    named = Path(os.environ.get(variable, ""))
    try:
        return (named if named.is_absolute() else Path.home() / usual) / "lightkit"
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
