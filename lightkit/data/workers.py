"""Reading samples one by one, here or in worker processes, with the same result."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, default_collate

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix

if TYPE_CHECKING:
    from lightkit.data.loaders import LoaderOptions
    from lightkit.data.prepare import Prepare


class Job(NamedTuple):
    """One batch to read."""

    epoch: int
    first: int
    """Position of the first sample in the epoch."""
    rows: list[int]


class _Failure(NamedTuple):
    """A user error on its way out of a worker, where raising it would bury it in a traceback."""

    text: str


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

    def batches(self, rows: Tensor, *, epoch: int, start: int) -> Iterator[Any]:
        """Batches of `rows`, the first of which has position `start` in the epoch.

        Raises:
            UserError: A worker process died, or the data set found fault with a sample.
        """
        size = self._options.batch_size
        jobs = [Job(epoch, start + i, rows[i : i + size].tolist()) for i in range(0, len(rows), size)]
        made = self._from_workers(jobs) if self._options.num_workers else self._from_here(jobs)
        for batch in made:
            if isinstance(batch, _Failure):
                raise UserError(batch.text)
            yield batch

    def _from_here(self, jobs: list[Job]) -> Iterator[Any]:
        for job in jobs:
            with _kept_generators():
                batch = self._fetch[job]
            yield _pin(batch) if self._options.pin_memory else batch

    def _from_workers(self, jobs: list[Job]) -> Iterator[Any]:
        self._jobs.jobs = jobs
        loader = self._loader or self._start()
        self._loader = loader if self._options.persistent_workers else None
        try:
            yield from loader
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error):
                raise
            self.close()
            raise UserError(
                f"a loader process died: {error}",
                key="data.num_workers",
                received=self._options.num_workers,
                fix="fewer workers if memory ran out; data.num_workers=0 shows errors of the data set itself",
            ) from error

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
            # Its own generator: otherwise each epoch draws a base seed from the global one.
            generator=torch.Generator().manual_seed(mix(options.seed, "workers")),
        )

    def close(self) -> None:
        """End the worker processes; `batches` starts new ones."""
        self._loader = None


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
            batch = self._batch(job)
        except UserError as error:
            return _Failure(str(error))
        return self.prepare(batch, epoch=job.epoch, first=job.first)

    def _batch(self, job: Job) -> Any:
        samples = [self._sample(job.epoch, job.first + i, row) for i, row in enumerate(job.rows)]
        try:
            batch = _float32(default_collate(samples))
        except (RuntimeError, TypeError, ValueError) as error:
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
        try:
            return self.base[row]
        except UserError:
            raise
        except Exception as error:
            raise RuntimeError(f"sample {row} of the data set could not be read: {error!r}") from error


def _float32(batch: Any) -> Any:
    """Pairs as a tuple, Python floats (which collate to float64) as float32."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return batch
    return tuple(_single(part) for part in batch)


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
