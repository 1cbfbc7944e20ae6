"""Orders of an epoch in which each place is worked out by itself, so that no list of all rows is made.

N samples of an epoch, S shards, B places.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from lightkit.common.argument_checks import check_range
from lightkit.common.randomness import mix, splitmix

Places = Callable[[Tensor], Tensor]
"""From places in a pass, `(B,)` int64, to the positions of the rows that stand there."""
LARGE = 1_000_000
"""Rows from which the order of a run is the one it keeps the name of, see `ORDERS`; fewer are shuffled as a list."""
BLOCK = 1 << 13
"""Places that are worked out at once."""


def spread(rows: Tensor, count: int) -> Tensor:
    """Return at most so many of these rows, evenly spaced, the first and the last among them."""
    if len(rows) <= count:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).round().to(torch.int64)]


def permutation(size: int, key: int) -> Places:
    """Return a permutation of the numbers below `size` that computes the image of each by itself.

    Of up to 65,536 numbers it is a table that `torch.randperm` draws. Of more it is a Feistel network of eight rounds
    (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) over numbers of as many bits, with SplitMix64's finaliser
    in each round. A result that is too large is enciphered again until it is not: cycle walking (Black and Rogaway
    2002, https://doi.org/10.1007/3-540-45760-7_9), less than twice on average.

    Args:
        size: How many numbers.
        key: Which permutation.
    """
    if size <= 1 << 16:
        table = torch.randperm(size, generator=torch.Generator().manual_seed(key))
        return lambda numbers: table[numbers]
    bits = (size - 1).bit_length()

    def encipher(numbers: np.ndarray) -> np.ndarray:
        high = bits // 2
        for turn in range(8):
            low = bits - high
            left, right = numbers >> low, numbers & ((1 << low) - 1)
            numbers = (right << high) | (left ^ (splitmix(right + mix(key, turn)) & ((1 << high) - 1)))
            high = low
        return numbers

    def at(numbers: Tensor) -> Tensor:
        found = encipher(numbers.numpy())
        while len(outside := np.flatnonzero(found >= size)):
            found[outside] = encipher(found[outside])
        return torch.from_numpy(found)

    return at


class Windows(Sampler[Tensor]):
    """Takes each row once: the shards in random order, and the rows of each window over them in random order.

    Rows that are read at about the same time lie in the few shards of one window, as with the buffer of a stream. But
    each place of an epoch is worked out by itself (`permutation`): an epoch begins at once, however many rows there
    are, and holds no list of them. A subclass may override `order`.

    Args:
        num_samples: Rows of the split.
        shards: `(S,)` the position at which each shard begins, rising; None takes all rows for one shard.
        window: Rows of a window; None makes one of all rows.

    Raises:
        UserError: There is no row in a window.
    """

    def __init__(self, num_samples: int, shards: Tensor | None = None, window: int | None = None) -> None:
        check_range("window", window, low=1, what="too small")
        self.num_samples, self.window = num_samples, window or num_samples
        known = torch.zeros(1, dtype=torch.int64) if shards is None else shards
        self.bounds = torch.cat([known, torch.tensor([0, num_samples])]).unique()

    def __len__(self) -> int:
        return self.num_samples

    def order(self, key: int) -> Places:
        """Return the order of one epoch, a function of `key` alone."""
        count = len(self.bounds) - 1
        shards = permutation(count, mix(key, "shards"))(torch.arange(count))
        sizes = self.bounds.diff()[shards]
        ends = sizes.cumsum(0)
        shifts = self.bounds[shards] - (ends - sizes)

        def at(places: Tensor) -> Tensor:
            windows, mixed = places // self.window, torch.empty_like(places)
            for number in windows.unique().tolist():
                begin, inside = number * self.window, windows == number
                size = min(self.window, self.num_samples - begin)
                mixed[inside] = begin + permutation(size, mix(key, "window", number))(places[inside] - begin)
            return mixed + shifts[torch.searchsorted(ends, mixed, right=True)]

        return at


class EpochRows:
    """The rows of a stretch of passes in the order of a sampler; a slice of it is a tensor.

    Args:
        rows: `(N,)` int64 rows of the split.
        sampler: Their order.
        seed: Seed of the run.
        first: Place at which it begins, over all passes.
        count: Its length.
    """

    def __init__(self, rows: Tensor, sampler: Windows, seed: int, *, first: int, count: int) -> None:
        self._rows, self._sampler, self._seed, self._first, self._count = rows, sampler, seed, first, count
        self._block = lru_cache(2)(self._worked_out)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> Tensor:
        first, stop, _ = part.indices(self._count)
        blocks = range(first // BLOCK, -(-max(first, stop) // BLOCK))
        found = torch.cat([self._rows[:0], *map(self._block, blocks)])
        return found[first - blocks.start * BLOCK :][: max(0, stop - first)]

    def _worked_out(self, block: int) -> Tensor:
        begin = self._first + block * BLOCK
        end, found = min(begin + BLOCK, self._first + self._count), []
        while begin < end:
            number, place = divmod(begin, len(self._sampler))
            places = torch.arange(place, min(len(self._sampler), place + end - begin))
            found.append(self._sampler.order(mix(self._seed, "order", number))(places))
            begin += len(places)
        return self._rows[torch.cat(found)]


ORDERS: dict[str, Callable[[int], Windows] | None] = {"randperm": None, "feistel-1": Windows}
"""Orders of a run with many rows and no sampler of its own, by the name that is kept with it; the newest is the last.

None is a list that `torch.randperm` makes. What a name gives must never change.
"""
OLDEST, NEWEST = next(iter(ORDERS)), next(reversed(ORDERS))
