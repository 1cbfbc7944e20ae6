"""A batch that is made of pieces is the one that is made at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.common.randomness import SampleRandom
from lightkit.data import DataInfo, fetch
from lightkit.data.normalize import Normalizer
from lightkit.data.per_sample import PerSample
from lightkit.data.prepare import Prepare
from lightkit.data.transforms import Contrast, GaussianNoise, RandomAffine, RandomErasing, RandomFlip, RandomShift
from lightkit.data.waiting import Board, ReadJob
from tests.data.pictures import joined, make
from tests.refused import refused

SIDE, ROWS = 12, 23
BYTES = 3 * SIDE * SIDE * 4


class Pictures:
    """Images that draw, as tensors or arrays; the sample of row 20, beyond the first piece, may be another one."""

    info = DataInfo("multiclass", (3, SIDE, SIDE), 3)

    def __init__(self, as_array: bool = False, odd: Any = None, target: Any = None) -> None:
        self.as_array, self.odd, self.target = as_array, odd, target

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        if row == 20 and self.odd is not None:
            return self.odd
        image = torch.rand(3, SIDE, SIDE) + row
        return image.double().numpy() if self.as_array else image, row % 3 if self.target is None else self.target


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


def read(dataset: Any, *augment: Any) -> Any:
    """Read all rows of a data set as one batch."""
    return fetch.Fetch(dataset, 5, Prepare(5, None, augment), Board(0)).read(ReadJob(1, 0, list(range(ROWS))))


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_pieces_give_the_batch_that_is_made_at_once(pieces: Any, made: Any, workers: int, as_array: bool) -> None:
    def epoch(start: int = 0, **settings: Any) -> tuple[Tensor, Tensor]:
        normalizer = Normalizer(torch.tensor(0.3), torch.tensor(0.7))
        data = made(Pictures(as_array), normalize=normalizer, augment=AUGMENT, **{"batch_size": 10, **settings})
        return joined(data.train, 1, start)

    sizes = pieces(100)
    x, y = epoch()
    assert sizes == [10, 10, 3]
    sizes = pieces(4)
    again, targets = epoch(num_workers=workers)
    small = [2] * 10 + [2, 1] if as_array else [4, 4, 2, 4, 4, 2, 3]  # arrays of float64 take twice the room
    assert sizes == ([] if workers else small)
    assert torch.equal(again, x)
    assert torch.equal(targets, y)
    assert torch.equal(epoch(7, num_workers=workers, batch_size=5)[0], x[7:])


@pytest.mark.parametrize("count", [1, 4])
def test_batches_as_they_are_and_their_memory(pieces: Any, count: int) -> None:
    pieces(count)
    for x, y in make(Pictures(), batch_size=9).train.epoch(0):
        assert (x.is_contiguous(), x.dtype, y.dtype) == (True, torch.float32, torch.int64)
        assert x.data_ptr() % 64 == 0  # as PyTorch's own: the last bits of a matrix product depend on it


def test_a_transform_that_may_mix_samples_gets_the_whole_batch(pieces: Any) -> None:
    class Neighbours:
        def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
            return x + x.roll(1, 0)

    sizes = pieces(4)
    x, _ = read(Pictures(), Neighbours())
    assert sizes == [ROWS]
    pieces(100)
    assert torch.equal(x, read(Pictures(), Neighbours())[0])


@pytest.mark.parametrize("count", [4, 100])
def test_samples_that_make_no_batch_are_refused_wherever_they_lie(pieces: Any, count: int) -> None:
    pieces(count)
    same = PerSample(lambda image: image[:, :5, :5], "data.augment[0]")
    text = "rows [0, 1, 2, 3, 4] and so on do not make a batch"
    refused(lambda: read(Pictures(odd=(torch.zeros(3, 6, 6), 0)), same), text)
    other = PerSample(lambda image: image[:, :5] if image.mean() > 20 else image, "data.augment[0]")
    text = "data.augment[0]: the samples of a batch come out with different shapes"
    refused(lambda: read(Pictures(), other), text)


@pytest.mark.parametrize("count", [4, 100])
@pytest.mark.parametrize(("kind", "target"), [(torch.float64, 0), (torch.float32, 0.5)], ids=["input", "target"])
def test_samples_of_another_type_are_joined_as_ever(pieces: Any, kind: torch.dtype, target: float, count: int) -> None:
    pieces(count)
    x, y = read(Pictures(odd=(torch.zeros(3, SIDE, SIDE, dtype=kind), target)), RandomFlip())
    assert (x.dtype, tuple(x.shape), not x[20].any()) == (torch.float32, (ROWS, 3, SIDE, SIDE), True)
    assert (len(y), float(y[20])) == (ROWS, target)


@pytest.mark.parametrize("target", [{"a": 1}, "word", np.float64(2.0)], ids=["dict", "text", "number"])
def test_any_target_passes(pieces: Any, target: Any) -> None:
    batches = []
    for count in (4, 100):
        pieces(count)
        batches.append(read(Pictures(target=target)))
    assert torch.equal(batches[0][0], batches[1][0])
    assert str(batches[0][1]) == str(batches[1][1])


class Many(Pictures):
    draws = False

    def __getitem__(self, row: int) -> Any:
        return torch.full((3, SIDE, SIDE), float(row)), row

    def __getitems__(self, rows: list[int]) -> list[Any]:
        self.asked = [*getattr(self, "asked", ()), rows]
        if 21 in rows and self.odd:
            raise ValueError("row 21")
        return [self[row] for row in rows]


class Changed(Many):
    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return -x, y


@pytest.mark.parametrize("odd", [None, True])
def test_rows_are_read_together_where_no_subclass_changes_how_one_is_read(pieces: Any, odd: Any) -> None:
    pieces(8)
    base, changed = Many(odd=odd), Changed()
    whole = read(base)
    assert [len(rows) for rows in base.asked] == [7, 8, 7], "the first tells the layout"
    assert whole[0][:, 0, 0, 0].tolist() == whole[1].tolist() == [*range(ROWS)]
    assert torch.equal(read(changed)[0], -whole[0])
    assert not hasattr(changed, "asked")
