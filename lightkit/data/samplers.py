"""Which rows an epoch takes, and in which order: a function of seed and epoch, so that a run can go on anywhere.

A sampler is one of PyTorch's: it gives positions among the rows of the training split, as numbers or tensors of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler, WeightedRandomSampler

from lightkit.common.errors import UserError, keys_under
from lightkit.common.failures import in_short, user_frame
from lightkit.common.randomness import mix
from lightkit.data.orders import BLOCK, LARGE, NEWEST, ORDERS, EpochRows, Windows
from lightkit.data.row_facts import LENGTHS, known_targets, row_numbers
from lightkit.data.sources import kept_generators, seed_generators

KEY = "data.sampler"
Make = Callable[..., Any] | None


class Shuffled(Sampler[Tensor]):
    """Takes each row once, in random order.

    Args:
        num_samples: Rows of the split.
    """

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[Tensor]:
        yield torch.randperm(self.num_samples)


class InOrder(Shuffled):
    """Takes each row once, in the order of the data set."""

    def __iter__(self) -> Iterator[Tensor]:
        yield torch.arange(self.num_samples)


class ByWeight(WeightedRandomSampler):
    """Draws rows with replacement, each as often as its weight says.

    Args:
        num_samples: Draws of an epoch; the rows of the split where nothing is said.
        weights: `(N,)`: the weight of each row of the split.

    Raises:
        UserError: The data set has no weights.
    """

    weighs = True
    """The draw does what the weights ask for, so the training loss counts all samples alike."""

    def __init__(self, num_samples: int, weights: Tensor | None = None) -> None:
        if weights is None:
            raise _lacking("weights", "data=csv data.dataset.weight_column=COLUMN")
        super().__init__(weights.tolist(), num_samples)


class ByLength(Shuffled):
    """Takes each row once, so that neighbours are of similar lengths: shuffled rows are sorted window by window.

    The window with the longest row comes first: too little memory shows at once. So does `LengthGroupedSampler` of
    transformers, but its windows go by the batch size, which may change in the middle of an epoch here.

    Args:
        lengths: `(N,)`: the length of each row of the split.
        window: Rows that are sorted together.

    Raises:
        UserError: The data set does not tell the lengths.
    """

    def __init__(self, lengths: Tensor | None = None, window: int = 2048) -> None:
        if lengths is None:
            raise _lacking("lengths", "a data set whose samples are of unlike lengths")
        super().__init__(len(lengths))
        self.lengths, self.window = lengths, window

    def __iter__(self) -> Iterator[Tensor]:
        drawn = torch.randperm(self.num_samples)
        order = self.lengths[drawn].argsort(descending=True, stable=True)
        places = order[(order // self.window).argsort(stable=True)]
        yield drawn[places.roll(-(int(order[0]) // self.window) * self.window)]


def _lacking(name: str, having: str) -> UserError:
    what, fix = f"the data set has no attribute `{name}`, a number for each row", f"such an attribute; {having}"
    return UserError(what, argument="", fix=fix, family="data-setting")


class Balanced(WeightedRandomSampler):
    """Draws rows with replacement, each class as often as any other.

    Args:
        targets: The class of each row of the split, `(N,)`.
        num_samples: Draws of an epoch; the rows of the split where nothing is said.

    Raises:
        UserError: The data set has no targets, or they are no classes.
    """

    def __init__(self, targets: Tensor | None = None, num_samples: int = 0) -> None:
        if targets is None:
            raise _lacking("targets", "a data set of classes")
        if targets.is_floating_point() or targets.ndim != 1:
            raise UserError("there are no classes to balance", argument="", received=f"targets of {targets.dtype}")
        super().__init__((1 / targets.bincount().double())[targets].tolist(), num_samples)


class EpochOrder:
    """The rows of each epoch, as a sampler gives them.

    Args:
        make: Makes the sampler, of the arguments that its class takes: `num_samples`, the number of rows; `targets`,
            those of the rows, where the data set tells them all at once; `weights` and `lengths` likewise; `shards`,
            the position at which each of its shards begins; `data_source`, something of their length. None shuffles.
        rows: `(N,)` int64 rows of the split.
        source: The data set.
        order: How many rows are shuffled, a name of `lightkit.data.orders.ORDERS`.
        weights: `(N,)`: how much each row of the data set counts.

    Raises:
        UserError: The sampler cannot be made, or does not say how long an epoch is.
    """

    def __init__(self, make: Make, rows: Tensor, source: Any, order: str = NEWEST, weights: Any = None) -> None:
        facts: dict[str, Any] = {"num_samples": len(rows), "data_source": range(len(rows))}
        known = {"targets": known_targets(source), "weights": weights}
        known["lengths"] = None if make is None else row_numbers(source, LENGTHS, argument="sampler")
        facts |= {name: values[rows] for name, values in known.items() if make and values is not None}
        starts = getattr(source, "shards", None)
        if starts is not None and bool((rows.diff() >= 0).all()):  # rows in an order of their own lie in no shards
            facts["shards"] = torch.searchsorted(rows, starts)
        made = Shuffled(len(rows)) if make is None else make(**facts)
        large = ORDERS[order] if len(rows) >= LARGE and type(made) is Shuffled else None
        self.rows, self.sampler = rows, made if large is None else large(len(rows))
        length, error = None, None
        try:
            length = len(self.sampler)
        except (TypeError, NotImplementedError) as failed:
            error = failed
        if not length:
            what = "the sampler takes no samples" if error is None else f"it does not say how long an epoch is: {error}"
            raise UserError(what, key=KEY, expected="__len__, of 1 or more", received=length)
        self.num_samples = int(length)

    def stretch(self, seed: int, first: int, count: int) -> Tensor | EpochRows:
        """Return the rows of a stretch of passes in their order.

        Args:
            seed: Seed of the run.
            first: Place at which it begins, over all passes.
            count: Its length.

        Raises:
            UserError: The sampler raises, or gives other positions than there are.
        """
        size = self.num_samples
        if isinstance(self.sampler, Windows):
            return EpochRows(self.rows, self.sampler, seed, first=first, count=count)
        passes = range(first // size, -(-(first + count) // size))
        return torch.cat([self._drawn(seed, number) for number in passes])[first % size :][:count]

    def _drawn(self, seed: int, epoch: int) -> Tensor:
        """Return the rows of a pass in their order, `(num_samples,)` int64.

        The generators of Python, NumPy and PyTorch are seeded for it, and put back afterwards.
        """
        sampler = self.sampler
        if type(sampler) is Shuffled:  # the same numbers, for a small part of the time
            own = torch.Generator().manual_seed(mix(seed, "order", epoch))
            return self.rows.index_select(0, torch.randperm(len(self.rows), generator=own))
        with kept_generators(), keys_under(KEY):
            seed_generators(mix(seed, "order", epoch))
            try:
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
                found = [*sampler]
            except Exception as error:
                if isinstance(error, UserError):
                    raise
                what = f"{type(sampler).__name__} failed: {in_short(error)}"
                raise UserError(what, key=KEY, origin=user_frame(error)) from error
        return self.rows[self._positions(found)]

    def _positions(self, found: list[Any]) -> Tensor:
        """Check what a sampler gave."""
        expected, kind = f"{self.num_samples} whole numbers from 0 to {len(self.rows) - 1}", ""
        try:
            tensors = bool(found) and all(isinstance(one, Tensor) and one.ndim == 1 for one in found)
            drawn = torch.cat(found) if tensors else torch.as_tensor(found)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError("gives no positions of rows", key=KEY, expected=expected, received=str(error)) from error
        if drawn.ndim != 1 or drawn.is_floating_point() or drawn.dtype == torch.bool:
            kind = f"{drawn.dtype} of shape {tuple(drawn.shape)}"
        elif len(drawn) != self.num_samples:
            kind = f"{len(drawn)} of them"
        elif drawn.min() < 0 or drawn.max() >= len(self.rows):
            kind = f"numbers from {int(drawn.min())} to {int(drawn.max())}"
        if kind:
            fix = "batches are made of data.batch_size rows each" if drawn.ndim > 1 else None
            raise UserError("gives other positions than there are", key=KEY, expected=expected, received=kind, fix=fix)
        return drawn.to(torch.int64)

    def check(self, seed: int) -> None:
        """Refuse a sampler whose next epoch depends on more than its number.

        Raises:
            UserError: It gives something else when the same epoch is drawn again.
        """
        some = min(self.num_samples, BLOCK)
        if not torch.equal(self.stretch(seed, 0, some)[:], self.stretch(seed, 0, some)[:]):
            what = "the same epoch is drawn differently the second time, so that a resumed run would see other samples"
            fix = (
                "draw from the generators of torch, numpy or random, which are seeded for each epoch, and keep no state"
            )
            raise UserError(what, key=KEY, received=type(self.sampler).__name__, fix=fix)
