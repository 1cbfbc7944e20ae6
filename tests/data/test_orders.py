"""Orders without a list of all rows: each place by itself, each row once, the same rows for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.data import Loader, TensorData
from lightkit.data.kept_rows import KeptRows
from lightkit.data.orders import BLOCK, LARGE, NEWEST, OLDEST, Windows, permutation, spread
from lightkit.data.prepare import LoaderOptions
from lightkit.data.samplers import EpochOrder, Shuffled

MANY = 10_000_000
GOLDEN_CIPHER = [1836201, 6656165, 1259555, 9140955, 5104104]
GOLDEN_WINDOWS = [879, 250, 187, 635, 706]
GOLDEN_DEFAULT = [421763, 652166, 811849, 416340, 134143]
SHARDS = torch.tensor([0, 500, 500, 1300, 4000])


def all_of(order: Callable[[Tensor], Tensor], count: int) -> Tensor:
    return torch.cat([order(places) for places in torch.arange(count).split(BLOCK)])


@pytest.mark.parametrize("size", [1, 2, 3, 65_536, 65_537, 70_001, 131_072])
def test_each_number_comes_once_and_each_place_by_itself(size: int) -> None:
    permuted = permutation(size, 7)
    found = all_of(permuted, size)
    assert torch.equal(found.sort().values, torch.arange(size))
    few = torch.tensor([size - 1, 0, size // 2])
    assert torch.equal(permuted(few), found[few])
    assert size < 4 or not torch.equal(found, all_of(permutation(size, 8), size))


def test_spread_of_few() -> None:
    assert spread(torch.arange(3), 5).tolist() == [0, 1, 2]
    assert spread(torch.arange(100), 1).tolist() == [0]
    assert spread(torch.arange(100), 3).tolist() == [0, 50, 99]


def test_the_first_rows_never_change() -> None:
    places = torch.arange(5)
    assert permutation(MANY, 1)(places).tolist() == GOLDEN_CIPHER
    assert Windows(5000, SHARDS, 1000).order(1)(places).tolist() == GOLDEN_WINDOWS
    found = EpochOrder(None, torch.arange(LARGE), [0] * LARGE).stretch(3, LARGE, 5)[:]
    assert found.tolist() == GOLDEN_DEFAULT
    assert [OLDEST, NEWEST] == ["randperm", "feistel-1"], "a further order gets a name of its own"


def test_a_cipher_is_as_even_as_chance() -> None:
    """Chi-square of where the numbers go, fixed points, and neighbours, over 64 permutations."""
    size, keys, cells = 66_000, 64, 16
    counts, fixed, neighbours = torch.zeros(cells, cells), 0, 0
    places = torch.arange(size)
    for key in range(keys):
        found = permutation(size, key)(places)
        pairs = (places * cells // size) * cells + found * cells // size
        counts += torch.bincount(pairs, minlength=cells**2).view(cells, cells)
        fixed += int((found == places).sum())
        neighbours += int((found.diff().abs() == 1).sum())
    expected = size * keys / cells**2
    chi_square, freedom = float(((counts - expected) ** 2 / expected).sum()), (cells - 1) ** 2
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5
    assert abs(fixed - keys) < 4 * keys**0.5, "one in each, on average"
    assert abs(neighbours - 2 * keys) < 4 * (2 * keys) ** 0.5


def test_windows_read_few_shards_at_a_time() -> None:
    sampler = Windows(5000, SHARDS, 1000)
    for key in (0, 1):
        found = all_of(sampler.order(key), 5000)
        assert torch.equal(found.sort().values, torch.arange(5000))
        shards = torch.searchsorted(SHARDS.unique(), found, right=True)
        assert all(len(window.unique()) <= 3 for window in shards.split(1000))
    assert not torch.equal(found, all_of(sampler.order(0), 5000))
    assert not torch.equal(found[:1000].sort().values, found[:1000]), "mixed within a window"
    assert torch.equal(all_of(Windows(7).order(3), 7), all_of(Windows(7, torch.tensor([0, 7, 7])).order(3), 7))
    with pytest.raises(UserError, match="window"):
        Windows(5, window=0)


def test_shards_of_some_of_their_rows() -> None:
    source = TensorData(torch.arange(10.0)[:, None], torch.arange(10) % 2)
    source.shards = torch.tensor([0, 4, 6, 8])  # type: ignore[attr-defined]

    def bounds(rows: list[int]) -> list[int]:
        return EpochOrder(
            lambda **facts: Windows(facts["num_samples"], facts.get("shards")), torch.tensor(rows), source
        ).sampler.bounds.tolist()

    assert bounds([1, 4, 5, 9]) == [0, 1, 3, 4], "the shard without rows is none"
    assert bounds([4, 1]) == [0, 2], "rows in an order of their own lie in no shards"


def loader(make: Any, rows: int = 40_000, **options: Any) -> Loader:
    source = TensorData(torch.arange(rows)[:, None], torch.zeros(rows, dtype=torch.int64))
    return Loader(source, torch.arange(rows), LoaderOptions(48, shuffle=True, seed=3, sampler=make, **options))


@pytest.mark.parametrize("make", [lambda **_: Windows(40_000), lambda **_: Windows(40_000, window=999)])
def test_an_epoch_is_entered_anywhere(make: Any) -> None:
    made = loader(make)
    whole = torch.cat([x for x, _ in made.epoch(1)])
    assert torch.equal(whole[:, 0], made.order(1))
    assert torch.equal(whole.sort(0).values[:, 0], torch.arange(40_000.0))
    for start in (0, 5, 16_380, 39_999, 40_000):
        parts = [x for x, _ in loader(make).epoch(1, start)]
        assert torch.equal(torch.cat([whole[:0], *parts]), whole[start:])
    halves = [torch.cat([x for x, _ in loader(make, replicas=2, replica=rank).epoch(1)]) for rank in range(2)]
    assert torch.equal(torch.cat(halves).sort(0).values, whole.sort(0).values)
    assert [len(x) for x, _ in loader(make, drop_last=True).epoch(0)] == [48] * 833
    short = loader(make, epoch_batches=500)  # an epoch is 24,000 samples of an endless row of passes
    passes = torch.cat([made.order(number) for number in range(2)])
    assert torch.equal(torch.cat([short.order(epoch) for epoch in range(3)]), passes[:72_000])


def test_many_rows_make_no_list_and_few_keep_their_order() -> None:
    asked: list[int] = []

    class Noted(Windows):
        def order(self, key: int) -> Callable[[Tensor], Tensor]:
            order = super().order(key)
            return lambda places: asked.append(len(places)) or order(places)  # type: ignore[func-returns-value]

    rows = torch.arange(MANY)
    drawn = EpochOrder(lambda num_samples, **_: Noted(num_samples), rows, rows)
    drawn.check(0)
    order, asked[:] = drawn.stretch(0, 5 * MANY, MANY), []
    assert [len(order[part]) for part in (slice(64), slice(64, 128), slice(MANY - 64, MANY), slice(3, 3))] == [
        64
    ] * 3 + [0]
    assert asked == [BLOCK, MANY % BLOCK]
    drawn = EpochOrder(None, rows, rows)
    assert isinstance(drawn.sampler, Windows)
    assert isinstance(EpochOrder(None, rows[: LARGE - 1], rows).sampler, Shuffled)
    before = EpochOrder(None, rows[:LARGE], rows, OLDEST)
    generator = torch.Generator().manual_seed(mix(3, "order", 2))
    assert torch.equal(before.stretch(3, 2 * LARGE, LARGE)[:], torch.randperm(LARGE, generator=generator))


def test_a_run_keeps_the_name_of_its_order() -> None:
    source = TensorData(torch.arange(4.0)[:, None], torch.zeros(4))
    kept = KeptRows.of(source, {"train": torch.arange(4)})
    assert KeptRows.from_bytes(kept.to_bytes()).order == NEWEST
    assert KeptRows.from_bytes(replace(kept, order=OLDEST).to_bytes()).order == OLDEST
    with pytest.raises(ValueError, match="'later', which this version does not know"):
        KeptRows.from_bytes(replace(kept, order="later").to_bytes())
