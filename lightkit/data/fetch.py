"""Turning rows of a data set into one prepared batch, in a worker process or in the main one."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from lightkit.common.errors import UserError
from lightkit.common.failures import DEBUG, in_short, is_out_of_memory, user_frame
from lightkit.common.randomness import mix
from lightkit.data.sample import read_sample, seed_generators
from lightkit.data.waiting import IDLE, JOINING, Board, ReadJob

if TYPE_CHECKING:
    from lightkit.data.prepare import Prepare

PIECE_BYTES = 4 << 20
"""Inputs of so many bytes are joined and prepared at once. More would leave the processor's cache between two steps,
and for each of them the system would hand out memory anew."""
_ALIGNED = 64


class Failure(NamedTuple):
    """A user error on its way out of a worker, where raising it would bury it in a traceback."""

    text: str
    trace: str
    """The traceback of what is behind it; empty where nothing is."""


class Fetch:
    """Turns a job into a batch; lives in every worker.

    Args:
        base: The data set.
        seed: Seed of the run.
        prepare: Scaling and augmentation.
        board: Where it is noted what is being done.
    """

    def __init__(self, base: Any, seed: int, prepare: Prepare, board: Board) -> None:
        self.base, self.seed, self.prepare, self.board = base, seed, prepare, board
        self.draws = getattr(base, "draws", True)
        self.check: Callable[[Any, list[int]], None] = getattr(base, "check", _no_check)
        self.collate: Callable[[list[Any]], Any] | None = getattr(base, "collate_fn", None)

    def __getitem__(self, job: ReadJob) -> Any:
        try:
            return self.read(job)
        except UserError as error:
            return Failure(str(error), _trace(error.__cause__))
        finally:
            self.board.note(IDLE, job.first)

    def read(self, job: ReadJob) -> Any:
        """The batch of a job.

        Raises:
            UserError: The data set or a transform is at fault.
        """
        sample = self._sample(job, 0)
        size = self._piece_size(sample)
        made = self._in_pieces(job, sample, size) if size and size < len(job.rows) else None
        if made is None:
            made = self._prepared(job, [sample, *(self._sample(job, at) for at in range(1, len(job.rows)))])
        return made

    def _piece_size(self, sample: Any) -> int | None:
        """Samples to join and prepare at once; None for all of them, where pieces may not give the same."""
        layout = _layout(sample)
        if layout is None or self.collate is not None or not self.prepare.sample_wise:
            return None
        return max(1, PIECE_BYTES // (sample[0].nbytes or 1))

    def _in_pieces(self, job: ReadJob, sample: Any, size: int) -> Any:
        """The batch of a job, so many samples at a time; None where they are not all alike.

        Args:
            job: The job.
            sample: Its first sample.
            size: Samples in a piece.
        """
        joined = _Joined(len(job.rows))
        for begin in range(0, len(job.rows), size):
            places = range(begin, min(begin + size, len(job.rows)))
            samples = [self._sample(job, at) if at else sample for at in places]
            if any(_layout(one) != _layout(sample) for one in samples):
                return None
            if not joined.add(*self._prepared(job, samples, begin)):
                return None
        return joined.batch()

    def _prepared(self, job: ReadJob, samples: list[Any], begin: int = 0) -> Any:
        """Some samples of a job as a batch, from the one at `begin` on."""
        rows = job.rows[begin : begin + len(samples)]
        self.board.note(JOINING, job.first)
        batch = _float32(self._collated(samples, rows, len(job.rows)))
        self.check(batch, rows)
        return self.prepare(batch, epoch=job.epoch, first=job.first + begin)

    def _collated(self, samples: list[Any], rows: list[int], count: int) -> Any:
        try:
            if self.collate is not None:
                return self.collate(samples)
            # In a worker process `default_collate` takes shared memory, which is for what is handed over as it is.
            final = self.prepare.idle and len(rows) == count
            return default_collate(samples) if final else collate(samples, collate_fn_map=_IN_OWN_MEMORY)
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, UserError):
                raise
            if self.collate is not None:
                what = f"collate_fn of the data set failed on rows {rows[:5]} and so on: {in_short(error)}"
                raise UserError(what, key="data.dataset", origin=user_frame(error), fix=DEBUG) from error
            raise UserError(
                f"rows {rows[:5]} and so on do not make a batch: {error}",
                key="data.dataset",
                expected="samples of one shape, as tensors, arrays or numbers",
                fix="a method collate_fn(samples) of the data set, which makes the batch that a task of your own gets "
                "(trainer.task)",
            ) from error

    def _sample(self, job: ReadJob, at: int) -> Any:
        row = job.rows[at]
        self.board.note(row, job.first)
        if self.draws:
            seed_generators(mix(self.seed, "sample", job.epoch, job.first + at))
        return read_sample(self.base, row)


class _Joined:
    """A batch (input, target) that is put together from pieces.

    Args:
        count: Samples it will have.
    """

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0
        self._x: Tensor | None = None
        self._y: list[Tensor] = []

    def add(self, x: Tensor, y: Any) -> bool:
        """Put the next piece in its place; False where it does not go with those before."""
        if not isinstance(y, Tensor):
            return False
        if self._x is None:
            self._x, self._y = _room(self._count, x), [y]
        elif _kind(x) != _kind(self._x) or _kind(y) != _kind(self._y[0]):
            return False
        else:
            self._y.append(y)
        self._x[self._done : self._done + len(x)] = x
        self._done += len(x)
        return True

    def batch(self) -> tuple[Tensor | None, Tensor]:
        """The whole batch."""
        return self._x, torch.cat(self._y)


def _room(count: int, x: Tensor) -> Tensor:
    """Memory for `count` samples like those of `x`; in a worker process such that the main process sees it too."""
    shape = (count, *x.shape[1:])
    size = math.prod(shape) * x.element_size()
    if get_worker_info() is not None:
        shared = torch.UntypedStorage._new_shared(size)
        return torch.empty(0, dtype=x.dtype).set_(shared).view(shape)
    # NumPy asks the system for large pages, PyTorch takes small ones; it aligns its memory as is done here.
    memory = np.empty(size + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    return torch.from_numpy(memory[begin : begin + size]).view(x.dtype).view(shape)


def _kind(part: Tensor) -> tuple[Any, ...]:
    """What the pieces of a batch have in common."""
    return part.shape[1:], part.dtype


def _layout(sample: Any) -> tuple[Any, ...] | None:
    """What samples (input, target) that make a batch have in common; None for others."""
    if not isinstance(sample, (tuple, list)) or len(sample) != 2 or not isinstance(sample[0], (Tensor, np.ndarray)):
        return None
    return sample[0].shape, sample[0].dtype


def _stacked(samples: Sequence[Tensor], **options: Any) -> Any:
    first = samples[0]
    plain = first.layout == torch.strided and not first.is_nested
    return torch.stack(tuple(samples)) if plain else collate_tensor_fn(samples, **options)


_IN_OWN_MEMORY = {**default_collate_fn_map, Tensor: _stacked}


def _float32(batch: Any) -> Any:
    """Pairs as a tuple, Python floats (which collate to float64) as float32."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return batch
    return tuple(_single(part) for part in batch)


def _trace(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


def _single(part: Any) -> Any:
    return part.to(torch.float32) if isinstance(part, Tensor) and part.dtype == torch.float64 else part


def _no_check(batch: Any, rows: list[int]) -> None:
    del batch, rows
