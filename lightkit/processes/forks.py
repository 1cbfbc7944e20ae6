"""Processes that are forked: one that leaves its terminal for good, and those of a server of jobs."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightkit.common.signals import waiting

_FORKABLE = ("jemalloc_bg_thd",)
"""Threads that do no harm: jemalloc holds its locks during a fork, and starts its thread anew after it."""


def fork_away(work: Callable[[], int], log: int) -> int:
    """Carry work out in a process that belongs to no terminal, by two forks and a session of its own.

    Args:
        work: Returns the exit status, with which that process ends.
        log: Number of the open file that takes what it prints.

    Returns:
        Number of the process between, which ends at once and is to be waited for.

    Raises:
        SystemExit: In the other process, at its end.
    """
    for stream in (sys.stdout, sys.stderr):  # else both processes would print what is left in it
        stream.flush()
    middle = os.fork()
    if middle == 0:
        _leave_terminal(log)
        raise SystemExit(work())
    return middle


def _leave_terminal(log: int) -> None:
    """Leave terminal and session for good; the process that was forked first ends here."""
    os.setsid()
    if os.fork():
        os._exit(0)  # only the leader of a session can get a terminal again, and that is this one
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable(log)  # of a crash in compiled code nothing else would be left
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, log, log)):
        os.dup2(source, number)
    os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # whoever follows the file wants each line as it comes
            stream.reconfigure(line_buffering=True)


@contextmanager
def forked() -> Iterator[int]:
    """Fork while signals wait until the end of the block; yield 0 in the new process, its number in this one."""
    with waiting():
        yield os.fork()


def missed_threads() -> list[str]:
    """List the threads beside this one that a process forked from here would miss, on Linux.

    OpenBLAS ends its threads before a fork, by itself, and starts others when it computes: a fork shows which they are.
    """
    names = _threads()
    if names:
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        names = _threads()
    return names


def _threads() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            name = (task / "comm").read_text("latin-1").strip()
            names += [name] if int(task.name) != os.getpid() and name not in _FORKABLE else []
    return names
