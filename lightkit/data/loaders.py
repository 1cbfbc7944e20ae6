"""Batches of one split, in an order that is a function of (seed, epoch), from any position on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.modules import shape_of
from lightkit.common.strategies import own_part
from lightkit.data.orders import EpochRows
from lightkit.data.prepare import LoaderOptions, Mixup, Prepare, is_pair
from lightkit.data.samplers import EpochOrder
from lightkit.data.sources import SampleData
from lightkit.data.tensors import Taker, page_locked
from lightkit.data.workers import SampleReader

Batches = Generator[Any, None, None]
_BLOCK_BYTES = 1 << 20
_BLOCK_BATCHES = 64


class Loader:
    """Batches of one split.

    The order of an epoch depends on the seed and the number of the epoch alone, so an epoch can start at any sample:
    nothing before it is read. Batch size and number of workers may differ from those of the run that stopped there.
    With `epoch_batches` an epoch is so many whole batches of an endless row of passes.

    Of several processes that train together each gets its part of every batch, by position; so their number may differ
    too. Where a batch has fewer samples than there are processes, those without one get the whole batch, to compute
    something that counts for nothing.

    Args:
        source: Data set, with `take` (whole batches) or sample by sample.
        rows: `(N,)` int64 rows of the data set; a row may occur several times.
        options: How batches are made.
        prepare: Scaling and augmentation.
        mixup: Mixes batches; None leaves them.

    Raises:
        UserError: The rows do not fill one batch and `drop_last` is on.
    """

    def __init__(
        self,
        source: Any,
        rows: Tensor,
        options: LoaderOptions,
        *,
        prepare: Prepare | None = None,
        mixup: Mixup | None = None,
    ) -> None:
        self.source, self.rows, self.options = source, rows, options
        self.prepare, self.mixup = prepare or Prepare(), mixup
        self.drawn = None
        if options.shuffle and len(rows):
            self.drawn = EpochOrder(options.sampler, rows, source, options.order, options.weights)
        drawn = getattr(self.drawn and self.drawn.sampler, "weighs", False)
        self.weights = None if drawn else options.weights
        if self.mixup is not None and self.weights is not None:
            what, fix = "mixed samples have no weight of their own", "data.weights=null, or data.mixup.alpha=null"
            raise UserError(what, argument="mixup", fix=fix, family="contradiction")
        self.num_samples = len(rows) if self.drawn is None else self.drawn.num_samples
        self.batch_size = options.batch_size
        if options.drop_last and self.num_samples < self.batch_size:
            what, fix = "no batch is left with drop_last", "data.drop_last=false or a smaller batch"
            expected = f"at most {self.num_samples}, the rows of this split"
            raise UserError(what, argument="batch_size", expected=expected, received=self.batch_size, fix=fix)
        whole = isinstance(source, Taker) and options.collate is None
        self._early, self._late = self.prepare, Prepare()
        if options.augment_on_device:
            early, late = self.prepare.apart()
            self._early, self._late = replace(self.prepare, augment=early), replace(late, normalizer=None)
        self._reader = None if whole else SampleReader(source, options, self._early)

    def __len__(self) -> int:
        return -(-self.epoch_samples // self.batch_size)

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch, without those that `drop_last` leaves out.

        An epoch that is entered where no batch of this size begins ends there too, with a smaller batch.
        """
        if self.options.epoch_batches is not None:
            return self.options.epoch_batches * self.batch_size
        return self.num_samples - (self.num_samples % self.batch_size if self.options.drop_last else 0)

    def order(self, epoch: int) -> Tensor:
        """Return the rows of the data set in the order of an epoch, `(N,)` int64."""
        return self.in_order(epoch)[:]

    def in_order(self, epoch: int) -> Tensor | EpochRows:
        """Return the same as something whose slices are tensors: of many rows no list is made."""
        count = self.num_samples if self.options.epoch_batches is None else self.epoch_samples
        if self.drawn is not None:
            return self.drawn.stretch(self.options.seed, epoch * count, count)
        return self.rows[torch.arange(epoch * count, (epoch + 1) * count) % self.num_samples]

    def epoch(self, epoch: int, start: int = 0, *, place: Callable[[Any], Iterable[Any]] = iter) -> Batches:
        """Yield the batches of an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            start: Samples already done; they are not read.
            place: Moves batches to the device where they are augmented, with `augment_on_device`.

        Raises:
            ValueError: `start` lies outside the epoch.
        """
        order = self.in_order(epoch)
        if not 0 <= start <= len(order):
            raise ValueError(f"start is {start}, not within 0 to {len(order)}")
        if self._reader is not None:
            begins = range(start, self.epoch_samples, self.batch_size)
            batches = self._reader.batches(partial(self._part, order), epoch=epoch, begins=begins)
        elif self.source.exact and not self._early.augment:
            batches = self._blocks(order, epoch, start)
        else:
            batches = self._one_by_one(order, epoch, start)
        if self._late.augment:
            begins = range(start, self.epoch_samples, self.batch_size)
            firsts = (self._part(order, begin)[0] for begin in begins)
            batches = (self._late(batch, epoch=epoch, first=first) for batch, first in zip(place(batches), firsts))
        if self.weights is not None:
            return self._weighted(batches, order, start)
        return batches if self.mixup is None else self._mixed(batches, epoch, start)

    def unweighted(self, batch: Any) -> Any:
        """Return a batch of this loader without the weights of its samples."""
        return batch if self.weights is None else batch[:2]

    def _weighted(self, batches: Batches, order: Tensor | EpochRows, start: int) -> Batches:
        """Put the weight of each sample beside inputs and targets."""
        assert self.weights is not None, "asked before"
        for batch, begin in zip(batches, range(start, self.epoch_samples, self.batch_size)):
            if not is_pair(batch):
                what, fix = "weights go with samples (input, target), and these have another form", "data.weights=null"
                raise UserError(what, key="data.weights", received=shape_of(batch)[:200], fix=fix)
            yield (*batch, self.weights[self._part(order, begin)[1]])

    @property
    def _whole(self) -> bool:
        """Tell whether batches are read whole, as mixup takes the samples of other processes too."""
        return self.options.replicas == 1 or self.mixup is not None

    def _part(self, order: Tensor | EpochRows, begin: int) -> tuple[int, Tensor]:
        """Return the position in the epoch and the rows of this process's part of the batch that begins at a place."""
        batch = order[begin : min(begin + self.batch_size, self.epoch_samples)]
        first, count = (0, len(batch)) if self._whole else self._own(len(batch))
        return begin + first, batch[first : first + count]

    def _own(self, size: int) -> tuple[int, int]:
        """Return the first and the number of this process's samples in a batch; all of them where it has none."""
        first, count = own_part(size, self.options.replica, self.options.replicas)
        return (first, count) if count else (0, size)

    def _mixed(self, batches: Batches, epoch: int, start: int) -> Batches:
        """Mix batches that were read whole, and cut this process's part out of each."""
        assert self.mixup is not None, "asked before"
        for x, y in self.mixup.mixed(batches, epoch=epoch, start=start):
            first, count = self._own(len(x))
            yield x[first : first + count], y[first : first + count]

    def _blocks(self, order: Tensor | EpochRows, epoch: int, start: int) -> Batches:
        """Gather several batches at once and cut them apart: a fraction of the cost of gathering each."""
        stop = self.epoch_samples
        if start >= stop:
            return
        x, y = self.source.take(order[start : start + 1])
        fitting = _BLOCK_BYTES // ((x.nbytes + y.nbytes) * self.batch_size or 1)
        size = self.batch_size * max(1, min(_BLOCK_BATCHES, fitting))
        entered = start % size if start % self.batch_size == 0 else 0
        before = len(self._own_rows(self.rows.new_zeros(entered))[0]) if entered else 0
        cuts = [start, *range(start + size - entered, stop, size), stop]
        for begin, end in pairwise(cuts):
            block = order[begin:end]
            own, sizes = self._own_rows(block)
            batch = self._taken(own)
            if before:
                # Aligned in memory as in the whole block, with zeros for what is not read: the last bits of a matrix
                # product depend on that.
                batch = tuple(torch.cat([part.new_zeros(before, *part.shape[1:]), part]) for part in batch)
            x, y = (part[before:] for part in self._pinned(self._early(batch, epoch=epoch, first=0)))
            if len(block) <= self.batch_size:
                yield x, y
            else:
                yield from zip(x.split(sizes), y.split(sizes), strict=True)
            before = 0

    def _own_rows(self, block: Tensor) -> tuple[Tensor, int | list[int]]:
        """Return this process's rows of a block of batches, and where to cut them."""
        if self._whole:
            return block, self.batch_size
        parts = [
            batch[first:][:count] for batch in block.split(self.batch_size) for first, count in [self._own(len(batch))]
        ]
        return torch.cat(parts), [len(part) for part in parts]

    def _one_by_one(self, order: Tensor | EpochRows, epoch: int, start: int) -> Batches:
        # Not in blocks: after a resume they would begin elsewhere, and the last bit of a sine depends on where in the
        # tensor an element stands.
        for begin in range(start, self.epoch_samples, self.batch_size):
            first, piece = self._part(order, begin)
            yield self._pinned(self._early(self._taken(piece), epoch=epoch, first=first))

    def _taken(self, rows: Tensor) -> Any:
        """Take rows of the data set, into page-locked memory where nothing else is made of them."""
        with page_locked(self.options.pin_memory and self._early.idle):
            return self.source.take(rows)

    def _pinned(self, batch: Any) -> Any:
        return tuple(part.pin_memory() for part in batch) if self.options.pin_memory else batch

    def with_rows(self, rows: Tensor, augment: Sequence[Any] | None = None, **changes: Any) -> Loader:
        """Return another loader like this one, over other rows; this one where only a seed that nothing uses differs.

        Args:
            rows: `(N,)` int64 rows; repeated ones (bootstrap) are augmented differently each time.
            augment: Transforms of the samples; None takes those of this loader.
            changes: `LoaderOptions` that differ, such as `seed`. With another order, or every last sample, an epoch
                is one pass.
        """
        seeded = self.drawn or self.mixup or self.prepare.augment or self._reader
        if not seeded and rows is self.rows and augment is None and changes.keys() == {"seed"}:
            return self
        if changes.keys() & {"shuffle", "drop_last"}:
            changes = {"epoch_batches": None, **changes}
        options = replace(self.options, **changes)
        augment = self.prepare.augment if augment is None else augment
        prepare, mixup = replace(self.prepare, seed=options.seed, augment=augment), copy.copy(self.mixup)
        if mixup is not None:
            mixup.seed = options.seed
        return Loader(self.source, rows, options, prepare=prepare, mixup=mixup)

    def close(self) -> None:
        """End the loader processes; the next epoch starts new ones."""
        if self._reader is not None:
            self._reader.close()


def small_size(loader: Loader) -> int:
    """Return how many samples `small_batch` reads, of two the part of this process."""
    return loader._own(min(2, loader.num_samples))[1]


def small_batch(loader: Loader) -> Any:
    """Read two samples as a training batch, in this process.

    Raises:
        Exception: Whatever the data set or a transform raises.
    """
    plain: dict[str, Any] = {"shuffle": False, "drop_last": False, "epoch_batches": None}
    options = replace(loader.options, num_workers=0, pin_memory=False, **plain)
    source = loader.source.reopened() if isinstance(loader.source, SampleData) else loader.source
    return next(iter(Loader(source, _rows(loader, 2), options, prepare=loader.prepare, mixup=loader.mixup).epoch(0)))


def whole_batch(loader: Loader) -> Any:
    """Read a batch of the full size in the way of training, workers and all; see `small_batch`."""
    rows = _rows(loader, loader.batch_size)
    with closing(loader.with_rows(rows, shuffle=False, drop_last=False, persistent_workers=False)) as other:
        return next(iter(other.epoch(0)))


def _rows(loader: Loader, count: int) -> Tensor:
    """Return the first rows of the first epoch, one of the last class among them: a too small output lacks it."""
    rows = loader.order(0)[:count]
    strata = getattr(loader.source, "strata", None)
    if strata is None or not len(rows):
        return rows
    last = loader.rows[strata[loader.rows].argmax()]
    return torch.cat([rows[:-1], last[None]])
