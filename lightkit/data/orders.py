"""Orders of an epoch in which each place is worked out by itself, so that no list of all rows is made.

N samples of an epoch, S shards, B places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
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
BLOCK = 1 << 14
"""Places that are worked out at once."""
_TABLE = 1 << 16
_ROUNDS = 8


class Permutation:
    """Permutes the numbers below `size`, and computes the image of each by itself.

    Of up to 65,536 numbers it is a table that `torch.randperm` draws. Of more it is a Feistel network of eight rounds
    (Luby and Rackoff 1988, https://doi.org/10.1137/0217022) over numbers of as many bits, with SplitMix64's finaliser
    in each round. A result that is too large is enciphered again until it is not: cycle walking (Black and Rogaway
    2002, https://doi.org/10.1007/3-540-45760-7_9), less than twice on average.

    Args:
        size: How many numbers.
        key: Which permutation.
    """

    def __init__(self, size: int, key: int) -> None:
        self.size, self._bits = size, max(0, size - 1).bit_length()
        drawn = torch.Generator().manual_seed(key)
        self._table = torch.randperm(size, generator=drawn) if size <= _TABLE else None
        self._keys = [mix(key, "round", number) for number in range(_ROUNDS)]

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the images of numbers, `(B,)` int64."""
        if self._table is not None:
            return self._table[numbers]
        found = self._enciphered(numbers.numpy())
        outside = np.flatnonzero(found >= self.size)
        while len(outside):
            found[outside] = self._enciphered(found[outside])
            outside = outside[found[outside] >= self.size]
        return torch.from_numpy(found)

    def _enciphered(self, numbers: np.ndarray) -> np.ndarray:
        high = self._bits // 2
        for key in self._keys:
            low = self._bits - high
            left, right = numbers >> low, numbers & ((1 << low) - 1)
            numbers = (right << high) | (left ^ (splitmix(right + key) & ((1 << high) - 1)))
            high = low
        return numbers


class Indexed(Sampler[Tensor]):
    """Base of samplers that know which row stands at any place of an epoch.

    An epoch of such a sampler begins at once, however many rows there are, and holds no list of them.

    Args:
        num_samples: Rows of the split; an epoch has as many samples.
    """

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[Tensor]:
        places = self.order(int(torch.randint(1 << 62, ())))
        return map(places, torch.arange(self.num_samples).split(BLOCK))

    def order(self, key: int) -> Places:
        """Return the order of one epoch, a function of `key` alone."""
        raise NotImplementedError


class Scattered(Indexed):
    """Takes each row once, in random order, by a cipher of its place (`Permutation`)."""

    def order(self, key: int) -> Places:
        """Return the order of one epoch."""
        return Permutation(self.num_samples, key)


class Windows(Indexed):
    """Takes each row once: the shards in random order, and the rows of each window over them in random order.

    Rows that are read at about the same time lie in the few shards of one window, as with the buffer of a stream, but
    each place of the epoch is known by itself.

    Args:
        num_samples: Rows of the split.
        shards: `(S,)` the position at which each shard begins, rising; None takes all rows for one shard.
        window: Rows of a window.

    Raises:
        UserError: There is no row in a window.
    """

    def __init__(self, num_samples: int, shards: Tensor | None = None, window: int = 4096) -> None:
        super().__init__(num_samples)
        check_range("window", window, low=1, what="too small")
        self.window = window
        known = torch.zeros(1, dtype=torch.int64) if shards is None else shards
        self.bounds = torch.cat([known, torch.tensor([0, num_samples])]).unique()

    def order(self, key: int) -> Places:
        """Return the order of one epoch."""
        count = len(self.bounds) - 1
        shards = Permutation(count, mix(key, "shards"))(torch.arange(count))
        sizes = self.bounds.diff()[shards]
        ends = sizes.cumsum(0)
        shifts = self.bounds[shards] - (ends - sizes)

        def at(places: Tensor) -> Tensor:
            windows, mixed = places // self.window, torch.empty_like(places)
            for number in windows.unique().tolist():
                begin, inside = number * self.window, windows == number
                size = min(self.window, self.num_samples - begin)
                mixed[inside] = begin + Permutation(size, mix(key, "window", number))(places[inside] - begin)
            return mixed + shifts[torch.searchsorted(ends, mixed, right=True)]

        return at


class EpochRows(Sized):
    """The rows of a stretch of passes, in their order; a slice of it is a tensor.

    Args:
        rows: `(N,)` int64 rows of the split.
        order: Gives the order of a pass by its number.
        size: Places of a pass.
        first: Place at which it begins, over all passes.
        count: Its length.
    """

    def __init__(self, rows: Tensor, order: Callable[[int], Places], *, size: int, first: int, count: int) -> None:
        self._rows, self._size, self._first, self._count = rows, size, first, count
        self._order = lru_cache(2)(order)
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
            number, place = divmod(begin, self._size)
            places = torch.arange(place, min(self._size, place + end - begin))
            found.append(self._order(number)(places))
            begin += len(places)
        return self._rows[torch.cat(found)]


def by_shards(rows: Tensor, starts: Tensor | None) -> Tensor | None:
    """Return the position at which each shard begins among some rows of a data set.

    Args:
        rows: `(N,)` int64 rows.
        starts: `(S,)` the first row of each shard, rising; None where there are no shards.
    """
    if starts is None or bool((rows.diff() < 0).any()):  # rows in an order of their own lie in no shards
        return None
    return torch.searchsorted(rows, starts)


ORDERS: dict[str, Callable[[int], Indexed] | None] = {"randperm": None, "feistel-1": Scattered}
"""Orders of a run with many rows and no sampler of its own, by the name that is kept with it; the newest is the last.

None is a list that `torch.randperm` makes. What a name gives must never change.
"""
OLDEST, NEWEST = next(iter(ORDERS)), next(reversed(ORDERS))
