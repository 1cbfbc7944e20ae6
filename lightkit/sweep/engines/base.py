"""What a sweep asks of the place where its jobs run."""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lightkit.common import run_files
from lightkit.common.errors import of_signal
from lightkit.processes.children import lightkit_command
from lightkit.sweep.job import Job, Start


def job_arguments(start: Start) -> list[str]:
    """Return the arguments of lightkit that run a job."""
    stop_at = ["--stop-at", start.stop_at] if start.stop_at is not None else []
    return ["train", "--job", str(start.job.folder), *stop_at]


def job_command(start: Start) -> list[str]:
    """Return the command of a job's process, to be run in the working directory of the sweep."""
    return lightkit_command(*job_arguments(start))


@dataclass(frozen=True)
class SweepPlan:
    """What an engine is built for."""

    options: Mapping[str, Any]
    """The section `sweep`."""
    jobs: Sequence[Job]
    """What is to run; the first one tells what each of them takes."""
    folder: Path
    """Folder of the sweep."""
    ahead: bool
    """Whether all jobs may be handed over at once: none depends on what came of others."""


class JobEngine(ABC):
    """Start jobs, end them by a signal that saves, and tell which have ended. One thread asks it.

    A job is the process of `job_command`, wherever it runs. It holds the lock of its folder, reads the configuration
    that the sweep has stored for it, goes on from its last checkpoint, and leaves `run.log` and `result.json`. What it
    prints belongs into the file `run_files.OUTPUT_LOG` of its folder, which exists before `start`.
    """

    survives: ClassVar[bool] = False
    """Whether jobs go on when the process of the sweep ends, as those in a queue do."""

    @classmethod
    def build(cls, plan: SweepPlan, **options: Any) -> JobEngine:
        """Build the engine for a sweep; `options` are those that the project gives it in `conf/plugins.yaml`."""
        made: JobEngine = cls(plan, **options)  # type: ignore[call-arg]
        return made

    @abstractmethod
    def room(self) -> int:
        """Return how many jobs more can be started now; of a queue, how many it takes."""

    @abstractmethod
    def start(self, start: Start) -> None:
        """Start a job, or let it go on."""

    @abstractmethod
    def stop(self, name: str, *, now: bool = False) -> None:
        """Tell a job to save a checkpoint and to end, or kill it `now`."""

    @abstractmethod
    def wait(self, seconds: float) -> Mapping[str, int]:
        """Wait until jobs have ended, at most so long; return the exit status of each by name, as shells count it."""

    def attach(self, names: Sequence[str]) -> Sequence[str]:
        """Return which of these jobs, started by an earlier process of the sweep, are still queued or running.

        They count as started: `wait` tells their end. Without a method of its own, an engine has none.
        """
        return ()

    def place(self, name: str) -> str:
        """Say where a job runs, in a word or two: `slot 1`, `gpu 0`, `node7`, `queued`."""
        return ""

    def why(self, name: str) -> str:
        """Say why a job has ended that `wait` has just told, where it was ended from outside; empty elsewhere."""
        return ""

    def close(self) -> None:  # noqa: B027  # there may be nothing to give back
        """Give back what was taken; jobs that still run are told to save and to end where nothing would watch them."""


_POLL_SECONDS = 0.2
_ALL = 1 << 20
Train = Callable[[Sequence[str]], Mapping[str, int]]
"""Trains jobs by name; returns the exit status that a process of each would have."""


class TogetherEngine(JobEngine):
    """Train all jobs that are started in one go: `wait` comes back when they have ended.

    Args:
        folder: Folder of the sweep.
        train: Trains jobs. A signal makes it save and return.
    """

    def __init__(self, folder: Path, train: Train) -> None:
        self._stop_file, self._train = folder / run_files.SWEEP_STOP, train
        self._named = dict[str, Start]()
        self._told = False

    def room(self) -> int:
        """Return room for all jobs."""
        return _ALL

    def start(self, start: Start) -> None:
        """Note a job that trains with the next `wait`."""
        self._named[start.job.name] = start

    def stop(self, name: str, *, now: bool = False) -> None:
        """Start no job that has not begun: those that train were told by a signal."""
        self._told = True

    def wait(self, seconds: float) -> Mapping[str, int]:
        """Train what has been started; return the exit status of each job by name."""
        names, self._named = [*self._named], {}
        if not names:
            time.sleep(seconds)
            return {}
        if self._told:
            return dict.fromkeys(names, of_signal(signal.SIGTERM))
        with self._stoppable():
            return self._train(names)

    def place(self, name: str) -> str:
        """Say that a job trains with others."""
        return "at once"

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Send this process SIGTERM when another one asks the sweep to end, as the loop that looks for that waits."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_POLL_SECONDS):
                if self._stop_file.exists():
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
