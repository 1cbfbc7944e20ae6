"""Reading samples one by one, here or in worker processes, with the same result."""

from __future__ import annotations

import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, default_collate

from lightkit.common.errors import UserError
from lightkit.common.memory import is_out_of_memory
from lightkit.common.randomness import mix
from lightkit.common.signals import numbers
from lightkit.data.sample import read_sample

if TYPE_CHECKING:
    from lightkit.data.loaders import LoaderOptions
    from lightkit.data.prepare import Prepare

_SPARED_SECONDS = 60
"""How long a worker lives on after a signal to the whole process group; the main process ends it much earlier."""


class Job(NamedTuple):
    """One batch to read."""

    epoch: int
    first: int
    """Position of the first sample in the epoch."""
    rows: list[int]


class _Failure(NamedTuple):
    """A user error on its way out of a worker, where raising it would bury it in a traceback."""

    text: str
    trace: str
    """The traceback of what is behind it; empty where nothing is."""


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
        self._fetch = _Fetch(base, options.seed, prepare)
        self._options = options
        self._jobs = _Jobs()
        self._loader: DataLoader[Any] | None = None
        self._running: Iterator[Any] | None = None

    def batches(self, parts: Iterable[tuple[int, Tensor]], *, epoch: int) -> Iterator[Any]:
        """A batch for each of `parts`: the position of its first sample in the epoch, and its rows.

        Raises:
            UserError: A worker process died, or the data set found fault with a sample.
        """
        jobs = [Job(epoch, first, rows.tolist()) for first, rows in parts]
        made = self._from_workers(jobs) if self._options.num_workers else self._from_here(jobs)
        for batch in made:
            if isinstance(batch, _Failure):
                raise UserError(batch.text) from (RuntimeError(batch.trace) if batch.trace else None)
            yield batch

    def _from_here(self, jobs: list[Job]) -> Iterator[Any]:
        for job in jobs:
            with _kept_generators():
                batch = self._fetch.read(job)
            yield _pin(batch) if self._options.pin_memory else batch

    def _from_workers(self, jobs: list[Job]) -> Iterator[Any]:
        self._jobs.jobs = jobs
        loader = self._loader or self._start()
        self._loader = loader if self._options.persistent_workers else None
        try:
            self._running = iter(loader)
            yield from self._running
        except (RuntimeError, OSError, EOFError) as error:
            reason = error if is_dead_worker(error) else self._lost()
            if reason is None:
                raise
            self.close()
            raise dead_worker(reason) from error
        finally:
            if not self._options.persistent_workers:
                self.close()

    def _lost(self) -> RuntimeError | None:
        """Say of a worker that died while it handed a batch over what PyTorch says of others; None where all live."""
        workers = getattr(self._running, "_workers", ())
        dead = next((worker for worker in workers if not worker.is_alive()), None)
        return dead and RuntimeError(f"DataLoader worker (pid {dead.pid}) ended while it handed a batch over")

    def _start(self) -> DataLoader[Any]:
        options = self._options
        return DataLoader(
            self._fetch,  # type: ignore[arg-type]
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

    def close(self) -> None:
        """End the worker processes; `batches` starts new ones."""
        running, self._loader, self._running = self._running, None, None
        if running is None:
            return
        getattr(running, "_shutdown_workers", _nothing)()
        for worker in getattr(running, "_workers", ()):
            if worker.is_alive():  # it hangs
                worker.kill()


def is_dead_worker(error: BaseException) -> bool:
    """Whether PyTorch noticed that a worker process is gone; it may do so in the middle of anything."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")


def dead_worker(error: BaseException) -> UserError:
    """The message about a worker process that is gone."""
    return UserError(
        f"a loader process died: {str(error).strip().splitlines()[0]}",
        key="data.num_workers",
        fix="if it was killed, memory may have run out: fewer workers, or a smaller data.prefetch_factor; "
        "data.num_workers=0 shows errors of the data set itself",
        exit_code=1,
    )


def _nothing() -> None:
    pass


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


class _Jobs(Sampler[Job]):
    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


class _Fetch:
    """Turns a job into a batch; lives in every worker."""

    def __init__(self, base: Any, seed: int, prepare: Prepare) -> None:
        self.base, self.seed, self.prepare = base, seed, prepare
        self.draws = getattr(base, "draws", True)
        self.check: Callable[[Any, list[int]], None] = getattr(base, "check", _no_check)

    def __getitem__(self, job: Job) -> Any:
        try:
            return self.read(job)
        except UserError as error:
            return _Failure(str(error), _trace(error.__cause__))

    def read(self, job: Job) -> Any:
        """The batch of a job; raises `UserError` where the data set is at fault."""
        return self.prepare(self._batch(job), epoch=job.epoch, first=job.first)

    def _batch(self, job: Job) -> Any:
        samples = [self._sample(job.epoch, job.first + i, row) for i, row in enumerate(job.rows)]
        try:
            batch = _float32(default_collate(samples))
        except (RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            raise UserError(
                f"rows {job.rows[:5]} and so on do not make a batch: {error}",
                key="data.dataset",
                expected="samples of one shape, as tensors, arrays or numbers",
            ) from error
        self.check(batch, job.rows)
        return batch

    def _sample(self, epoch: int, position: int, row: int) -> Any:
        if self.draws:
            key = mix(self.seed, "sample", epoch, position)
            random.seed(key)
            np.random.seed(key & 0xFFFFFFFF)
            torch.default_generator.manual_seed(key)
        return read_sample(self.base, row)


def _float32(batch: Any) -> Any:
    """Pairs as a tuple, Python floats (which collate to float64) as float32."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return batch
    return tuple(_single(part) for part in batch)


def _trace(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


def _single(part: Any) -> Any:
    return part.to(torch.float32) if isinstance(part, Tensor) and part.dtype == torch.float64 else part


def _pin(batch: Any) -> Any:
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)


def _no_check(batch: Any, rows: list[int]) -> None:
    del batch, rows


def _unchanged(batch: Any) -> Any:
    return batch


@contextmanager
def _kept_generators() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
