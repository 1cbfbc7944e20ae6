"""Waiting for a batch of worker processes: which of them reads what, for how long, and how one ended."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.sharedctypes import RawArray
from time import monotonic
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from lightkit.common.errors import FAILED, UserError
from lightkit.data.prepare import LoaderOptions
from lightkit.processes.children import is_stopped

FIRST_SECONDS = 60.0
"""How long a batch is waited for before a line says so; each further line takes twice as long as the one before."""
POLL_SECONDS = 0.5
"""How often a wait looks at the worker processes."""
_PATIENCE_SECONDS = 5.0
"""PyTorch's own patience with a worker process that is to end."""
IDLE, JOINING = -1, -2
_RESUME = "`lightkit resume RUN` goes on with a training run from its last checkpoint, if it got as far as one"
_CAUSES = {
    "SIGKILL": "most likely memory ran out and the system killed it (see `dmesg`): fewer data.num_workers, a smaller "
    "data.prefetch_factor, or data.num_workers=0, which reads in the main process",
    "SIGBUS": "most likely shared memory ran out (`df -h /dev/shm`; in a container `--shm-size=8g`): fewer "
    "data.num_workers, or data.num_workers=0, which needs none",
}
_OWN_CODE = "data.num_workers=0 reads in the main process and shows errors of the data set itself"
_LOG = logging.getLogger(__name__)


class ReadJob(NamedTuple):
    """One batch to read."""

    epoch: int
    first: int
    """Position of the first sample in the epoch."""
    rows: list[int]


class Board:
    """What each worker process does at the moment, in memory that all of them share.

    Args:
        workers: Number of worker processes.
    """

    def __init__(self, workers: int) -> None:
        if workers:
            self._rows, self._firsts = RawArray("q", [IDLE] * workers), RawArray("q", workers)
            self._began = RawArray("d", workers)

    def note(self, row: int, first: int) -> None:
        """Note, in a worker process, that it begins to read a row.

        Args:
            row: The row; `JOINING` where the rows of a batch are read and are now made one, `IDLE` where that is done.
            first: Position of the batch's first sample in the epoch.
        """
        info = get_worker_info()
        if info is not None:
            self._began[info.id], self._firsts[info.id], self._rows[info.id] = monotonic(), first, row

    def first(self, worker: int) -> int | None:
        """Return the first sample's position of the batch that a worker process is at; None where it is idle."""
        return None if self._rows[worker] == IDLE else self._firsts[worker]

    def describe(self, worker: int) -> str:
        """Describe what a worker process does: `reading row 7 of the data set`."""
        row = self._rows[worker]
        if row == IDLE:
            return "waiting for work"
        return "joining and preparing a batch" if row == JOINING else f"reading row {row} of the data set"

    def seconds(self, worker: int) -> float:
        """Return for how long a worker process has been at it."""
        return monotonic() - self._began[worker]


class WorkerWatch:
    """Looks after the wait for batches.

    Args:
        options: Number of workers, time limit, batch size and name of the split.
    """

    def __init__(self, options: LoaderOptions) -> None:
        self.board = Board(options.num_workers)
        self._options, self._epoch, self._begins, self._next = options, 0, range(0), 0
        self._due = FIRST_SECONDS
        self._stopped = set[int]()

    def begin(self, epoch: int, begins: range) -> None:
        """Note the batches to come: the number of their epoch, and where in it they begin."""
        self._epoch, self._begins, self._next, self._due = epoch, begins, 0, FIRST_SECONDS

    def came(self) -> None:
        """Note that the next batch has come."""
        self._next += 1
        self._due = FIRST_SECONDS
        if self._stopped:
            self._stopped.clear()
            _LOG.warning("batches come again (%s)", self._place(None))

    def look(self, waited: float, workers: Sequence[Any]) -> None:
        """Say, sparingly, that a batch has not come for so many seconds, and what the worker processes do.

        Raises:
            TimeoutError: It took longer than it may.
        """
        limit = self._options.timeout_seconds
        if waited >= _PATIENCE_SECONDS:
            self._look_for_stopped(workers)
        if waited >= self._due:
            self._due *= 2
            _LOG.warning("no batch for %.0f s (%s): %s", waited, self._place(None), self._busy(workers))
        if limit and waited >= limit:
            raise TimeoutError

    def _look_for_stopped(self, workers: Sequence[Any]) -> None:
        """Say of each worker process once that it is stopped: it never goes on by itself."""
        stopped = {worker.pid for worker in workers if is_stopped(worker.pid)}
        if stopped - self._stopped:
            _LOG.warning("no batch comes (%s): %s", self._place(None), self._busy(workers))
        self._stopped |= stopped

    def late_error(self, workers: Sequence[Any]) -> UserError:
        """Make the error about a batch that did not come in time."""
        limit = self._options.timeout_seconds
        fix = f"{_OWN_CODE}; data.timeout_seconds=null waits for as long as it takes. {_RESUME}"
        facts: dict[str, Any] = {"key": "data.timeout_seconds", "received": limit, "origin": self._place(None)}
        what = f"no batch came within {limit:g} s: {self._busy(workers)}"
        return UserError(what, fix=fix, exit_code=FAILED, family="loader-process", **facts)

    def ended_error(self, workers: Sequence[Any]) -> UserError:
        """Make the error about worker processes that are gone: which, how they ended, where they were."""
        gone = [number for number, worker in enumerate(workers) if worker.exitcode is not None]
        ends, causes = list[str](), list[str]()
        for number in gone:
            worker = workers[number]
            signal_name = next((one.name for one in signal.Signals if one == -worker.exitcode), None)
            end = f"was killed by {signal_name}" if signal_name else f"ended with exit status {worker.exitcode}"
            ends.append(f"worker {number} (pid {worker.pid}) {end} while it was {self.board.describe(number)}")
            causes.append(_CAUSES.get(signal_name or "", _OWN_CODE))
        what, fix = "; ".join(ends) or "a worker process is gone", f"{[*causes, _OWN_CODE][0]}. {_RESUME}"
        place = self._place(self.board.first(gone[0]) if gone else None)
        facts: dict[str, Any] = {"key": "data.num_workers", "received": len(workers), "origin": place}
        return UserError(what, fix=fix, exit_code=FAILED, family="loader-process", **facts)

    def hanging(self, workers: int) -> list[int]:
        """List the worker processes that have been at one thing for too long to be asked to end."""
        busy = (number for number in range(workers) if self.board.first(number) is not None)
        return [number for number in busy if self.board.seconds(number) > _PATIENCE_SECONDS]

    def _busy(self, workers: Sequence[Any]) -> str:
        """Describe what the busy worker processes do, the longest first."""
        pids = [worker.pid for worker in workers]
        stopped = {number for number, pid in enumerate(pids) if is_stopped(pid)}
        busy = [number for number in range(len(pids)) if number in stopped or self.board.first(number) is not None]
        if not busy:
            return f"all {len(workers)} workers wait for work, or hand over what they read"
        busy.sort(key=lambda number: (number in stopped, self.board.seconds(number)), reverse=True)
        return "; ".join(
            f"worker {number} (pid {pids[number]}) is stopped, until `kill -CONT {pids[number]}` lets it go on"
            if number in stopped
            else f"worker {number} (pid {pids[number]}) has been {self.board.describe(number)} "
            f"for {self.board.seconds(number):.0f} s"
            for number in busy
        )

    def _place(self, first: int | None) -> str:
        """Name split, epoch and batch.

        Args:
            first: Position of the batch's first sample; None takes the batch that is waited for.
        """
        name, size = self._options.split or "data", self._options.batch_size
        if not self._begins:
            return name
        awaited = self._begins[min(self._next, len(self._begins) - 1)] if first is None else first
        epoch = f"epoch {self._epoch + 1}, " if self._options.shuffle else ""
        return f"{name}, {epoch}batch {awaited // size + 1} of {self._begins[-1] // size + 1}"


class WatchedLoader(DataLoader[Any]):
    """A data loader whose waits are looked after.

    Args:
        fetch: Makes a batch of a `Job`.
        watch: Looks after the waits.
        **options: Those of `torch.utils.data.DataLoader`.
    """

    def __init__(self, fetch: Any, watch: WorkerWatch, **options: Any) -> None:
        self.watch = watch
        super().__init__(fetch, **options)

    def _get_iterator(self) -> Any:
        return _Watched(self)


class _Watched(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: WatchedLoader) -> None:
        self._watch = loader.watch
        super().__init__(loader)
        # PyTorch's handler of SIGCHLD raises in the middle of anything, where the error is blamed on whatever is being
        # done. Of these processes it shall know nothing: `_get_data` finds out by itself.
        signal_handling._remove_worker_pids(id(self))
        self._worker_pids_set = False

    def _get_data(self) -> Any:
        began = monotonic()
        while True:
            came, data = self._try_get_data(POLL_SECONDS)
            if came:
                return data
            if self._pin_memory and not self._pin_memory_thread.is_alive():
                raise ConnectionError("the thread that puts batches into page-locked memory has ended")
            self._watch.look(monotonic() - began, self._workers)


def some_end(workers: Sequence[Any]) -> bool:
    """Tell whether worker processes have ended, or do so within seconds."""
    for ending in wait([worker.sentinel for worker in workers], _PATIENCE_SECONDS) if workers else ():
        next(worker for worker in workers if worker.sentinel == ending).join()
    return any(worker.exitcode is not None for worker in workers)
