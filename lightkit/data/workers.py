"""Reading samples one by one, here or in worker processes, with the same result."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch.utils.data._utils.pin_memory import pin_memory

from lightkit.common.errors import UserError
from lightkit.common.failures import is_dead_worker
from lightkit.common.randomness import mix
from lightkit.common.signals import held, numbers
from lightkit.data.fetch import Fetch, WorkerFailure
from lightkit.data.prepare import LoaderOptions, Prepare
from lightkit.data.sources import kept_generators
from lightkit.data.waiting import ReadJob, WatchedLoader, WorkerWatch, some_end

Part = Callable[[int], tuple[int, Tensor]]
"""From the place in an epoch at which a batch begins to the position of its first sample, and its rows."""
_SPARED_SECONDS = 60
"""How long a worker lives on after a signal to the whole process group; the main process ends it much earlier."""


class SampleReader:
    """Makes batches of a data set with `__getitem__`.

    Every sample is read with python's, numpy's and torch's generators seeded by (seed, epoch, position), so user code
    that draws from them gives the same whatever the number of workers and wherever the epoch was entered. In this
    process the generators are put back after each batch. A data set that draws nothing says so by an attribute `draws =
    False`.

    Args:
        base: The data set.
        options: Workers, batch size, pinning.
        prepare: Scaling and augmentation, done in the workers.
    """

    def __init__(self, base: Any, options: LoaderOptions, prepare: Prepare) -> None:
        self._watch = WorkerWatch(options)
        self._fetch = Fetch(base, options.seed, prepare, self._watch.board, options.collate)
        self._options = options
        self._jobs = _Jobs()
        self._loader: WatchedLoader | None = None
        self._running: Any = None

    def batches(self, part: Part, *, epoch: int, begins: range) -> Generator[Any, None, None]:
        """Yield the batches that begin at some places of an epoch.

        Args:
            part: What gives the rows of such a batch.
            epoch: Number of the epoch.
            begins: The places.

        Raises:
            UserError: A worker process died, a batch did not come in time, or the data set found fault with a sample.
        """
        jobs = (ReadJob(epoch, first, rows.tolist()) for first, rows in map(part, begins))
        self._watch.begin(epoch, begins)
        if not self._options.num_workers:
            for job in jobs:
                with kept_generators():
                    batch = self._fetch.read(job)
                yield pin_memory(batch) if self._options.pin_memory else batch
            return
        for batch in self._from_workers(jobs):
            if isinstance(batch, WorkerFailure):
                raise UserError(batch.text, family=batch.family) from (
                    RuntimeError(batch.trace) if batch.trace else None
                )
            yield batch

    def _from_workers(self, jobs: Iterable[ReadJob]) -> Iterator[Any]:
        self._jobs.jobs = jobs
        try:
            for batch in self._started():
                self._watch.came()
                yield batch
        except TimeoutError as error:
            raise self._ended_by(self._watch.late_error(self._running._workers)) from error
        except (RuntimeError, OSError, EOFError) as error:
            workers = getattr(self._running, "_workers", ())
            # What a worker process had sent is lost with it: the connection breaks before the process is known to end.
            if not (is_dead_worker(error) or (not isinstance(error, RuntimeError) and some_end(workers))):
                raise
            raise self._ended_by(self._watch.ended_error(workers)) from error
        finally:
            if not self._options.persistent_workers:
                self.close()

    def _started(self) -> Iterator[Any]:
        """Start worker processes, or give those of the epoch before their new jobs."""
        if self._loader is not None:
            return iter(self._loader)
        options = self._options
        loader = WatchedLoader(
            self._fetch,
            self._watch,
            sampler=self._jobs,
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=options.num_workers,
            pin_memory=options.pin_memory,
            persistent_workers=options.persistent_workers,
            prefetch_factor=options.prefetch_factor,
            worker_init_fn=_leave_signals,
            # Its own generator: otherwise each epoch draws a base seed from the global one.
            generator=torch.Generator().manual_seed(mix(options.seed, "workers")),
        )
        with held():  # a signal must raise nothing while processes are being started
            self._running = iter(loader)
        self._loader = loader if self._options.persistent_workers else None
        running: Iterator[Any] = self._running
        return running

    def _ended_by(self, error: UserError) -> UserError:
        """End the worker processes, whatever they are doing, and return the error they are ended for."""
        for worker in getattr(self._running, "_workers", ()):
            worker.kill()
        self.close()
        return error

    def close(self) -> None:
        """End the worker processes; `batches` starts new ones."""
        running, self._loader, self._running = self._running, None, None
        if running is None:
            return
        workers = getattr(running, "_workers", ())
        for number in self._watch.hanging(len(workers)):
            workers[number].kill()  # PyTorch would wait for each of them in turn
        if hasattr(running, "_shutdown_workers"):
            running._shutdown_workers()
        for worker in workers:
            if worker.is_alive():
                worker.kill()


def _leave_signals(_number: int) -> None:
    """Let the main process alone decide what a signal to the whole process group means.

    Ctrl-C goes to all processes at once; the main one saves and then ends its workers.
    """
    for number in numbers("SIGTERM"):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _spare_once)
    sys.excepthook = _hushed


def _spare_once(_number: int, _frame: FrameType | None) -> None:
    # A second one is for this process alone: PyTorch, or the interpreter at its exit, ends a worker that hangs. Neither
    # sends two where it waits for the end of this process, so it ends by itself too.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "alarm"):
        signal.alarm(_SPARED_SECONDS)


def _hushed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # A worker's errors go to the main process. What comes here is from the thread that hands tensors over, when the
    # main process was called away in the middle of that.
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


class _Jobs(Sampler[ReadJob]):
    def __init__(self) -> None:
        self.jobs: Iterable[ReadJob] = ()

    def __iter__(self) -> Iterator[ReadJob]:
        return iter(self.jobs)


def _unchanged(batch: Any) -> Any:
    return batch
