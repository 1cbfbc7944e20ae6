"""Turning rows of a data set into one prepared batch, in a worker process or in the main one."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate

from lightkit.common.errors import UserError, keys_under
from lightkit.common.failures import DEBUG, in_short, is_out_of_memory, user_frame
from lightkit.common.modules import mapped, shape_of
from lightkit.common.randomness import mix
from lightkit.data.batch_memory import BatchMemory
from lightkit.data.collates import IN_OWN_MEMORY, WITH_DATACLASSES, one_structure, unlike
from lightkit.data.placed import changed_by
from lightkit.data.prepare import Prepare
from lightkit.data.sources import SampleData, own_method, read_sample, seed_generators
from lightkit.data.waiting import IDLE, JOINING, Board, ReadJob

PIECE_BYTES = 4 << 20
"""Bytes of inputs that are joined and prepared at once. More would leave the processor's cache between two steps,
and for each of them the system would hand out memory anew."""


class WorkerFailure(NamedTuple):
    """A user error on its way out of a worker, where raising it would bury it in a traceback."""

    text: str
    trace: str
    """The traceback of what is behind it; empty where nothing is."""
    family: str
    """Slug of its family."""


class Fetch:
    """Turns a job into a batch; lives in every worker.

    Args:
        base: The data set.
        seed: Seed of the run.
        prepare: Scaling and augmentation.
        board: Where it is noted what is being done.
        collate: Makes a batch of a list of samples; None takes the `collate_fn` of the data set, or stacks them.
    """

    def __init__(
        self,
        base: Any,
        seed: int,
        prepare: Prepare,
        board: Board,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.base, self.seed, self.board = base, seed, board
        self.read_whole = own_method(base.base if isinstance(base, SampleData) else base, "read_whole")
        self.cut, self.prepare = ([], prepare) if self.read_whole is None else prepare.apart()
        self.draws = getattr(base, "draws", True)
        self.many = None if self.draws else own_method(base.base if type(base) is SampleData else base, "__getitems__")
        self.check: Callable[[Any, list[int]], None] | None = getattr(base, "check", None)
        self.collate: Callable[[list[Any]], Any] | None = collate or getattr(base, "collate_fn", None)
        self._collate_name = "collate_fn of the data set" if collate is None else "data.collate"
        self.memory = BatchMemory()

    def __getitem__(self, job: ReadJob) -> Any:
        try:
            return self.read(job)
        except UserError as error:
            cause = error.__cause__
            trace = "" if cause is None else "".join(traceback.format_exception(cause))
            return WorkerFailure(str(error), trace, error.families[0].slug)
        finally:
            self.board.note(IDLE, job.first)

    def read(self, job: ReadJob) -> Any:
        """Read the batch of a job.

        Raises:
            UserError: The data set or a transform is at fault.
        """
        # A long time after the data set was built, so that nobody else can say which key it stands under.
        with keys_under("data.dataset"):
            sample, batch = self._sample(job, 0), None
            # Elsewhere the pieces of a batch may not give the same as the whole of it.
            if _layout(sample) is not None and self.collate is None and self.prepare.sample_wise:
                size = max(1, PIECE_BYTES // (sample[0].nbytes or 1))
                batch = self._in_pieces(job, sample, size) if size < len(job.rows) else None
            if batch is None:
                batch = self._prepared(job, [sample, *self._samples(job, range(1, len(job.rows)))])
            return batch

    def _in_pieces(self, job: ReadJob, sample: Any, size: int) -> Any:
        """Make the batch of a job from pieces of so many samples; None where the samples are not all alike.

        Args:
            job: The job.
            sample: Its first sample.
            size: Samples in a piece.
        """
        x, targets = None, list[Any]()
        for begin in range(0, len(job.rows), size):
            places = range(begin or 1, min(begin + size, len(job.rows)))
            samples = [*([] if begin else [sample]), *self._samples(job, places)]
            if any(_layout(one) != _layout(sample) for one in samples):
                return None
            piece, y = self._prepared(job, samples, begin)
            x = self.memory.reserve(len(job.rows), piece) if x is None else x
            targets.append(y)
            alike = isinstance(y, Tensor) and y.shape[1:] == targets[0].shape[1:] and y.dtype == targets[0].dtype
            if not alike or (piece.shape[1:], piece.dtype) != (x.shape[1:], x.dtype):
                return None
            x[begin : begin + len(piece)] = piece
        return self.memory.sent(x), torch.cat(targets)

    def _prepared(self, job: ReadJob, samples: list[Any], begin: int = 0) -> Any:
        """Join and prepare some samples of a job, from the one at `begin` on."""
        rows = job.rows[begin : begin + len(samples)]
        self.board.note(JOINING, job.first)
        batch = _float32(self._collated(samples, rows, len(job.rows)))
        if self.check is not None:
            self.check(batch, rows)
        return self.prepare(batch, epoch=job.epoch, first=job.first + begin)

    def _collated(self, samples: list[Any], rows: list[int], count: int) -> Any:
        try:
            if self.collate is not None:
                return self.collate(samples)
            # In a worker process PyTorch's own way takes shared memory, which is for what is handed over as it is.
            final = self.prepare.idle and len(rows) == count
            return collate(one_structure(samples), collate_fn_map=WITH_DATACLASSES if final else IN_OWN_MEMORY)
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, UserError):
                raise
            raise self._no_batch(error, samples, rows) from error

    def _no_batch(self, error: Exception, samples: list[Any], rows: list[int]) -> UserError:
        """Say which samples make no batch, and which of them is unlike the first one of the data set."""
        what = f"rows {rows[:5]} and so on do not make a batch: {error}"
        facts: dict[str, Any] = {"expected": "samples of one shape, as tensors, arrays or numbers", "fix": _FIX}
        if self.collate is not None:
            what = f"{self._collate_name} failed on rows {rows[:5]} and so on: {in_short(error)}"
            facts = {"origin": user_frame(error), "fix": DEBUG}
        first = read_sample(self.base, 0)
        odd = unlike(samples, first)
        if odd is not None and (self.collate is None or not isinstance(error, OSError)):
            what = f"{what}; sample {getattr(self.base, 'named', int)(rows[odd])} is not like sample 0"
            facts |= {"expected": shape_of(first), "received": shape_of(samples[odd])}
        key = "data.collate" if self._collate_name == "data.collate" else "data.dataset"
        return UserError(what, key=key, family="data-unreadable", **facts)

    def _samples(self, job: ReadJob, places: range) -> Any:
        """Read the samples at some places of a job; at once where the data set draws nothing and can."""
        if self.many is not None and not self.cut and places:
            self.board.note(job.rows[places.start], job.first)
            with suppress(Exception):  # one by one it shows which row is at fault
                return self.many(job.rows[places.start : places.stop])
        return [self._sample(job, at) for at in places]

    def _sample(self, job: ReadJob, at: int) -> Any:
        row = job.rows[at]
        self.board.note(row, job.first)
        if self.draws:
            seed_generators(mix(self.seed, "sample", job.epoch, job.first + at))
        if not self.cut or self.read_whole is None:
            return read_sample(self.base, row)
        ((transform, key),) = self.cut[0].steps
        seed_generators(mix(mix(self.seed, "sample", job.epoch), key, job.first + at))  # as `PerSample` does
        return read_sample(self.base, row, partial(self.read_whole, change=partial(changed_by, transform, key=key)))


def _layout(sample: Any) -> tuple[Any, ...] | None:
    """Return shape and type of the input of a sample (input, target); None for other samples."""
    if not isinstance(sample, (tuple, list)) or len(sample) != 2 or not isinstance(sample[0], (Tensor, np.ndarray)):
        return None
    return sample[0].shape, sample[0].dtype


_FIX = (
    "a method collate_fn(samples) of the data set, or data.collate, which makes the batch that a task of your own gets "
    "(trainer.task)"
)


def _float32(batch: Any) -> Any:
    """Make a pair a tuple, and float64 (which Python floats collate to) float32."""
    given = tuple(batch) if isinstance(batch, list) and len(batch) == 2 else batch
    return mapped(lambda part: part.to(torch.float32) if part.dtype == torch.float64 else part, given)
