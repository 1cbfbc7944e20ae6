"""What a sweep asks of the place where its jobs run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lightkit.common.processes import lightkit_command
from lightkit.sweep.job import Start


def job_arguments(start: Start) -> list[str]:
    """Return the arguments of lightkit that run a job."""
    stop_at = ["--stop-at", start.stop_at] if start.stop_at is not None else []
    return ["train", "--job", str(start.job.folder), *stop_at]


def job_command(start: Start) -> list[str]:
    """Return the command of a job's process, to be run in the working directory of the sweep."""
    return lightkit_command(*job_arguments(start))


class JobEngine(Protocol):
    """Start jobs, end them by a signal that saves, and tell which have ended. One thread asks it.

    A job is the process of `job_command`, wherever it runs. It holds the lock of its folder, reads the configuration
    that the sweep has stored for it, goes on from its last checkpoint, and leaves `run.log` and `result.json`. What it
    prints belongs into the file `run_files.OUTPUT_LOG` of its folder, which exists before `start`.
    """

    survives: bool
    """Whether jobs go on when the process of the sweep ends, as those in a queue do."""

    def room(self) -> int:
        """Return how many jobs more can be started now; of a queue, how many it takes."""
        ...

    def start(self, start: Start) -> None:
        """Start a job, or let it go on."""
        ...

    def stop(self, name: str, *, now: bool = False) -> None:
        """Tell a job to save a checkpoint and to end, or kill it `now`."""
        ...

    def wait(self, seconds: float) -> Mapping[str, int]:
        """Wait until jobs have ended, at most so long; return the exit status of each by name, as shells count it."""
        ...

    def attach(self, names: Sequence[str]) -> Sequence[str]:
        """Return which of these jobs, started by an earlier process of the sweep, are still queued or running.

        They count as started: `wait` tells their end.
        """
        ...

    def place(self, name: str) -> str:
        """Say where a job runs, in a word or two: `slot 1`, `gpu 0`, `node7`, `queued`."""
        ...

    def why(self, name: str) -> str:
        """Say why a job has ended that `wait` has just told, where it was ended from outside; empty elsewhere."""
        ...

    def close(self) -> None:
        """Give back what was taken; jobs that still run are told to save and to end where nothing would watch them."""
        ...
