"""A batch that is made of pieces is the one that is made at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom
from lightkit.data import DataInfo, build_data, fetch
from lightkit.data.normalize import Normalizer
from lightkit.data.prepare import PerSample, Prepare
from lightkit.data.transforms import Contrast, GaussianNoise, RandomAffine, RandomErasing, RandomFlip, RandomShift
from lightkit.data.waiting import Board, ReadJob

SIDE, ROWS = 12, 23
BYTES = 3 * SIDE * SIDE * 4
WHOLE = {"by": "ordered", "val": 0.0, "test": 0.0}
INFO = DataInfo("multiclass", (3, SIDE, SIDE), 3)


class Pictures:
    """Images that draw, as tensors or arrays."""

    info = INFO

    def __init__(self, as_array: bool = False) -> None:
        self.as_array = as_array

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Any, int]:
        image = torch.rand(3, SIDE, SIDE) + row
        return image.double().numpy() if self.as_array else image, row % 3


def brighter(image: Tensor) -> Tensor:
    return image * torch.rand(())


AUGMENT = (RandomShift(2), RandomFlip(), brighter, RandomErasing(), Contrast(), RandomAffine(), GaussianNoise())


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the number of samples in a piece; notes the sizes of the pieces that were prepared in this process."""
    sizes: list[int] = []
    prepare = Prepare.__call__

    def noted(self: Prepare, batch: Any, **place: int) -> Any:
        sizes.append(len(batch[0]))
        return prepare(self, batch, **place)

    monkeypatch.setattr(Prepare, "__call__", noted)

    def choose(count: int) -> list[int]:
        monkeypatch.setattr(fetch, "PIECE_BYTES", count * BYTES)
        sizes.clear()
        return sizes

    return choose


def epoch(dataset: Any, *, start: int = 0, **settings: Any) -> tuple[Tensor, Tensor]:
    normalizer = Normalizer(torch.tensor(0.3), torch.tensor(0.7))
    made = {"split": WHOLE, "seed": 5, "batch_size": 10, "normalize": normalizer, "augment": AUGMENT, **settings}
    data = build_data(dataset=dataset, **made)
    try:
        x, y = (torch.cat(parts) for parts in zip(*data.train.epoch(1, start), strict=True))
        return x, y
    finally:
        data.close()


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_pieces_give_the_batch_that_is_made_at_once(pieces: Any, workers: int, as_array: bool) -> None:
    sizes = pieces(100)
    x, y = epoch(Pictures(as_array))
    assert sizes == [10, 10, 3]
    sizes = pieces(4)
    again, targets = epoch(Pictures(as_array), num_workers=workers)
    small = [2] * 10 + [2, 1] if as_array else [4, 4, 2, 4, 4, 2, 3]  # arrays of float64 take twice the room
    assert sizes == ([] if workers else small)
    assert torch.equal(again, x)
    assert torch.equal(targets, y)
    rest, _ = epoch(Pictures(as_array), num_workers=workers, start=7, batch_size=5)
    assert torch.equal(rest, x[7:])


@pytest.mark.parametrize("count", [1, 4])
def test_batches_as_they_are_and_their_memory(pieces: Any, count: int) -> None:
    pieces(count)
    data = build_data(dataset=Pictures(), split=WHOLE, batch_size=9, seed=5)
    for x, y in data.train.epoch(0):
        assert (x.is_contiguous(), x.dtype, y.dtype) == (True, torch.float32, torch.int64)
        assert x.data_ptr() % 64 == 0  # as PyTorch's own: the last bits of a matrix product depend on it


def test_batches_of_worker_processes_are_made_in_shared_memory(pieces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces(4)
    told = Fetched(Pictures(), (RandomFlip(),))
    assert not told.read()[0].is_shared()
    monkeypatch.setattr(fetch, "get_worker_info", lambda: object())
    assert told.read()[0].is_shared()


class Fetched:
    """Reads all rows of a data set as one batch."""

    def __init__(self, dataset: Any, augment: Any = ()) -> None:
        self.fetch = fetch.Fetch(dataset, 5, Prepare(5, None, augment), Board(0))

    def read(self) -> Any:
        return self.fetch.read(ReadJob(1, 0, list(range(ROWS))))


class Neighbours:
    """A transform of the user's that mixes samples of a batch."""

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        return x + x.roll(1, 0)


def test_a_transform_that_may_mix_samples_gets_the_whole_batch(pieces: Any) -> None:
    sizes = pieces(4)
    x, _ = Fetched(Pictures(), (Neighbours(),)).read()
    assert sizes == [ROWS]
    sizes = pieces(100)
    assert torch.equal(x, Fetched(Pictures(), (Neighbours(),)).read()[0])


class Odd(Pictures):
    """One sample, beyond the first piece, is not like the others."""

    def __init__(self, sample: Any) -> None:
        super().__init__()
        self.sample = sample

    def __getitem__(self, row: int) -> Any:
        return self.sample if row == 20 else super().__getitem__(row)


def test_samples_that_make_no_batch_are_refused_wherever_they_lie(pieces: Any) -> None:
    augment = (PerSample(lambda image: image[:, :5, :5], "data.augment[0]"),)
    for count in (4, 100):
        pieces(count)
        with pytest.raises(UserError, match=r"rows \[0, 1, 2, 3, 4\] and so on do not make a batch"):
            Fetched(Odd((torch.zeros(3, 6, 6), 0)), augment).read()


@pytest.mark.parametrize("count", [4, 100])
@pytest.mark.parametrize(
    "sample",
    [(torch.zeros(3, SIDE, SIDE, dtype=torch.float64), 0), (torch.zeros(3, SIDE, SIDE), 0.5)],
    ids=["input", "target"],
)
def test_samples_of_another_type_are_joined_as_ever(pieces: Any, sample: Any, count: int) -> None:
    pieces(count)
    x, y = Fetched(Odd(sample), (RandomFlip(),)).read()
    assert (x.dtype, tuple(x.shape), not x[20].any()) == (torch.float32, (ROWS, 3, SIDE, SIDE), True)
    assert (len(y), float(y[20])) == (ROWS, float(sample[1]))


@pytest.mark.parametrize("count", [4, 100])
def test_shapes_that_a_transform_makes_of_a_batch_are_one(pieces: Any, count: int) -> None:
    def cropped(image: Tensor) -> Tensor:
        return image[:, :5] if image.mean() > 20 else image

    pieces(count)
    with pytest.raises(UserError, match=r"data\.augment\[0\]: the samples of a batch come out with different shapes"):
        Fetched(Pictures(), (PerSample(cropped, "data.augment[0]"),)).read()


@pytest.mark.parametrize("targets", [{"a": 1}, "word", np.float64(2.0)], ids=["dict", "text", "number"])
def test_any_target_passes(pieces: Any, targets: Any) -> None:
    class Told(Pictures):
        def __getitem__(self, row: int) -> Any:
            return super().__getitem__(row)[0], targets

    batches = []
    for count in (4, 100):
        pieces(count)
        batches.append(Fetched(Told()).read())
    assert torch.equal(batches[0][0], batches[1][0])
    assert str(batches[0][1]) == str(batches[1][1])
