"""Processes: starting lightkit in one, how many may run at once, and the part of a batch that each computes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_WITHOUT_HERE = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from runpy import run_module; run_module('lightkit', run_name='__main__', alter_sys=True)"
)


def lightkit_command(*args: str) -> list[str]:
    """Return the command that runs lightkit, for a process that finds modules in the same places as this one.

    `python -m` looks into the working directory first, which may be a folder that came from elsewhere.

    Args:
        *args: Arguments of lightkit.
    """
    here = Path.cwd()
    is_searched = any(Path(entry).resolve() == here for entry in sys.path)
    return [sys.executable, *(["-m", "lightkit"] if is_searched else ["-c", _WITHOUT_HERE]), *args]


def lightkit_path() -> str:
    """Return the `PYTHONPATH` with which another process finds this lightkit."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))


def usable_cpus() -> int:
    """Count the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped (SIGSTOP, Ctrl-Z) until somebody lets it go on; False where that is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, ValueError, IndexError):
        return False


def own_part(size: int, replica: int, replicas: int) -> tuple[int, int]:
    """Return which samples of a batch one of several replicas of a model computes.

    The parts are neighbours in the order of the replicas and differ by one sample at most; where there are fewer
    samples than replicas, the last ones have none.

    Args:
        size: Samples in the batch.
        replica: Number of the replica, from 0.
        replicas: Number of replicas.

    Returns:
        Position of the first sample in the batch, and the number of samples.
    """
    base, rest = divmod(size, replicas)
    return replica * base + min(replica, rest), base + (replica < rest)
