"""Who is behind the number of a process, and which run it works on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

LOCK, CONFIG = ".lock", "config.yaml"
"""Files of a run's folder; the process that runs in it keeps the first one open."""
_GENERATIONS = 3
"""Ancestors that are looked at too: the ranks of a run are children of the process that started it."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; None is what this user may not know."""

    pid: int
    memory_mib: float | None = None
    user: str | None = None
    command: str | None = None
    run: Path | None = None
    """Folder of the run, where it is one of lightkit."""


def describe(pid: int, memory_mib: float | None = None) -> GpuProcess:
    """Find out about a process; one of another container is known by its number only.

    Args:
        pid: Its number.
        memory_mib: Memory of the GPU that it holds.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            user, command = _text(process, "username"), _text(process, "cmdline")
    except (psutil.Error, OSError):
        return GpuProcess(pid, memory_mib)
    return GpuProcess(pid, memory_mib, user, command, next(_runs(process), None))


def _text(process: psutil.Process, what: str) -> str | None:
    import psutil

    try:
        found = getattr(process, what)()
    except (psutil.Error, OSError, KeyError):
        return None
    return " ".join(found) if isinstance(found, list) else str(found)


def _runs(process: psutil.Process) -> Iterator[Path]:
    """Yield the folders of runs whose lock is held open by the process or by an ancestor of it."""
    import psutil

    try:
        for one in [process, *process.parents()[:_GENERATIONS]]:
            files = (Path(file.path) for file in one.open_files())
            yield from (file.parent for file in files if file.name == LOCK and (file.parent / CONFIG).is_file())
    except (psutil.Error, OSError):  # those of other users are not shown
        return
