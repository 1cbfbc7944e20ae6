"""Processes: how many may run at once, which is stopped, and the part of a batch that each computes."""

from __future__ import annotations

import os
from pathlib import Path


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
