"""The lock of a folder: the kernel's, so that it is free however its holder dies. What the file says is only beside it.

A process number in a file says nothing: it may belong to another process by now, and anybody who may write there can
have written it. Whether somebody works in a folder, and who, is asked of the kernel; of a lock that is free, the file
tells how it came free.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import IO, Any

from lightkit.common import run_files
from lightkit.common.errors import IN_USE, UserError
from lightkit.common.reading import UnreadableError, parse_object
from lightkit.processes.children import output_of
from lightkit.processes.files import HAS_LOCKS, is_taken, take, wait_until_free, without_links

_TRIES, _TRY_SECONDS = 5, 0.01
_LOOKERS_SECONDS = 60.0
"""How long to try where only such hold a lock as look at it, each for a moment."""
_POLL_SECONDS = 0.05
"""Time between two looks where a lock cannot be waited for."""
_MOST_BYTES, _MOST_PROCESSES = 1 << 16, 1 << 31
_RELEASED = "released"
"""The last line of a lock that its holder gave up in good order."""


@dataclass(frozen=True)
class LockState:
    """What a lock says at one moment.

    Attributes:
        is_held: Whether a process holds it.
        told: The holder, or the last one, in words: `process 4711 on host`.
        pid: Its number; None where it is not known, or belongs to another process by now.
        host: Its machine.
        boot: What names the time since that machine was started.
        is_detached: Whether it was detached from its terminal.
        is_released: Whether the last holder gave it up in good order; None where the file does not tell.
        written: Second at which the file was written last.
    """

    is_held: bool
    told: str = ""
    pid: int | None = None
    host: str | None = None
    boot: str | None = None
    is_detached: bool = False
    is_released: bool | None = None
    written: float = 0.0


@contextmanager
def locked(folder: Path, name: str = run_files.LOCK, *, detached: bool = False) -> Iterator[None]:
    """Hold the lock of a run folder while inside.

    It goes with the process that holds it, however that ends; worker processes give it up.

    Args:
        folder: An existing folder.
        name: Name of the lock.
        detached: Whether this process is detached from its terminal, for the record.

    Raises:
        UserError: Another process holds it (exit code 75).
        OSError: The file of the lock cannot be made or written.
    """
    with open(folder / name, "a+b", buffering=0, opener=without_links) as file:
        is_ours = _lock(file, folder, {"detached": True} if detached else {})
        try:
            yield
        finally:
            if is_ours and not file.closed:  # closed in a process that was forked inside
                with suppress(OSError):
                    file.write(f"{_RELEASED}\n".encode())


def read_lock(folder: Path, name: str = run_files.LOCK) -> LockState | None:
    """Look at a lock; None where there is none.

    Args:
        folder: The folder.
        name: Name of the lock.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            with open_lock(f"{folder}/{name}") as file:
                state = _state(file, is_taken(file))
        except OSError:
            return None
        if not state.is_held or state.pid is not None or not tries_left:
            break
        time.sleep(_TRY_SECONDS)  # the holder may be about to write who it is
    return state


def in_use(folder: Path, told: str) -> UserError:
    """Return the error of a folder that another process works in.

    Args:
        folder: The folder.
        told: The process in words.
    """
    what = f"{told or 'another process'} is running in this folder"
    fix = f"wait for it or end it: lightkit wait {folder}, lightkit stop {folder}"
    return UserError(what, key=str(folder), fix=fix, exit_code=IN_USE, family="folder-in-use")


def lock_holder(folder: Path, name: str = run_files.LOCK) -> str | None:
    """Return which process runs in a folder, such as `process 4711 on host`; None where none does, or nobody knows."""
    with suppress(OSError), open_lock(f"{folder}/{name}") as file:
        state = read_lock(folder, name) if is_taken(file) is not False else None
        return (state.told or "another process") if state is not None and state.is_held else None
    return None


def wait_for_lock(folder: Path, name: str = run_files.LOCK, timeout: float | None = None) -> bool:
    """Wait until no process holds a lock.

    Without a time limit the kernel wakes this process up. A wait for the kernel cannot be cut short, so with one it
    looks again and again.

    Args:
        folder: The folder.
        name: Name of the lock.
        timeout: Seconds after which to give up; None never does.

    Returns:
        Whether it is free.
    """
    if timeout is None:
        with suppress(OSError), open_lock(folder / name) as file:
            wait_until_free(file)
    end = None if timeout is None else time.monotonic() + timeout
    while (state := read_lock(folder, name)) is not None and state.is_held:
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


@cache
def boot_id() -> str | None:
    """Return what names the time since this machine was started; None where the system does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    if sys.platform == "darwin":
        return (output_of(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]) or "").strip() or None
    return None


def _lock(file: IO[bytes], folder: Path, facts: dict[str, Any]) -> bool:
    """Lock a file and write into it who has done so.

    Returns:
        Whether what stands in the file is ours; where there are no locks on Windows nothing is written.
    """
    if not HAS_LOCKS:
        return False
    tries_left, end = _TRIES, time.monotonic() + _LOOKERS_SECONDS
    while not take(file):
        if is_taken(file):
            tries_left -= 1
        if not tries_left or time.monotonic() > end:
            raise in_use(folder, _state(file, True).told)
        time.sleep(_TRY_SECONDS)  # somebody may only have asked who holds it
    if os.fstat(file.fileno()).st_nlink > 1:
        return False  # it is another file, too, whose content is not ours
    pid, host = os.getpid(), socket.gethostname()
    facts = {"pid": pid, "host": host, "boot": boot_id(), "born": _born(pid), **facts}
    file.truncate(0)
    file.write(f"process {pid} on {host}\n{json.dumps(facts)}\n".encode())
    return True


def _state(file: IO[bytes] | FileIO, held: bool | None) -> LockState:
    """Read what a lock says; who holds it is what the kernel says.

    Args:
        file: The file of the lock; that of an earlier version has its first line alone.
        held: Whether a process holds it; None where there are no locks, so that the process itself is looked for.
    """
    file.seek(0)
    content, written = file.read(_MOST_BYTES) or b"", os.fstat(file.fileno()).st_mtime
    lines, facts = content.decode(errors="replace").splitlines(), dict[str, Any]()
    with suppress(UnreadableError, IndexError):
        facts = parse_object(lines[1])
    released = bool(facts) and lines[-1] == _RELEASED
    host, claimed = _claimed(facts)
    claimed = None if released else claimed
    is_elsewhere, words = host not in (None, socket.gethostname()), lines[0].strip() if lines else ""
    pid = None if held is False else holder_of(file, None if is_elsewhere else claimed, is_locked=bool(held))
    if pid is not None and pid != claimed:
        host, words = socket.gethostname(), f"process {pid} on {socket.gethostname()}"
    elif is_elsewhere:
        pid = claimed  # nothing here signals it
    return LockState(
        is_held=pid is not None if held is None else held,
        told=words,
        pid=pid,
        host=host,
        boot=facts["boot"] if isinstance(facts.get("boot"), str) else None,
        is_detached=facts.get("detached") is True,
        is_released=released if facts else None,
        written=written,
    )


def _claimed(facts: dict[str, Any]) -> tuple[str | None, int | None]:
    """Return the machine that the file of a lock names, and the process if it can be the one that wrote it."""
    host, pid = facts.get("host"), facts.get("pid")
    if not isinstance(host, str) or type(pid) is not int or not 0 < pid < _MOST_PROCESSES:
        return None, None
    return host, pid if _is_same(pid, host, facts.get("boot"), facts.get("born")) else None


def _is_same(pid: int, host: str, boot: Any, born: Any) -> bool:
    """Tell whether a process number still means the process that wrote it down; of another machine's, believe it."""
    if host != socket.gethostname():
        return True
    if boot != boot_id():
        return False
    if isinstance(born, int):
        return _born(pid) == born
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _born(pid: int) -> int | None:
    """Return when a process was started, in the kernel's count; None where it is gone or the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return None


PROC = Path("/proc")
_HELD = re.compile(r"^lock:.*\bFLOCK\b.*\bWRITE\b", re.M)
"""A line of what Linux tells of an open file."""


def open_lock(path: Path | str) -> FileIO:
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
