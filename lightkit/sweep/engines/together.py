"""Jobs that train at once, in the process of the sweep."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightkit.common import run_files
from lightkit.common.exit_codes import of_signal
from lightkit.sweep.engines.base import JobEngine
from lightkit.sweep.job import Start

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
