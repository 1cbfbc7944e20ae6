"""Order, position, workers: an epoch can be entered anywhere and always looks the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.data import Loader, TensorData
from lightkit.data.prepare import LoaderOptions, Prepare
from lightkit.data.transforms import GaussianNoise, RandomShift
from tests.data.pictures import DATA, ROWS, Silent, in_memory, joined, make, same

AUGMENT = (RandomShift(1), GaussianNoise())
KINDS = pytest.mark.parametrize(("kind", "workers"), [("memory", 0), ("drawn", 0), ("samples", 0), ("samples", 2)])


@pytest.mark.parametrize("augment", [(), AUGMENT], ids=["plain", "augmented"])
@KINDS
def test_epoch_entered_anywhere_is_the_tail_of_the_whole_one(made: Any, kind: str, workers: int, augment: Any) -> None:
    data = made(DATA[kind](), num_workers=workers, augment=augment)
    other = made(DATA[kind](), augment=augment, batch_size=5)
    for epoch in (0, 1):
        x, y = joined(data.train, epoch)
        for start in (8, 16, 40):
            assert same(joined(data.train, epoch, start), (x[start:], y[start:]))
        assert same(joined(other.train, epoch, 13), (x[13:], y[13:])), "of another batch size, without workers"
    assert not list(data.train.epoch(0, ROWS))
    with pytest.raises(ValueError, match="start is 42, not within 0 to 41"):
        data.train.epoch(0, 42)


@pytest.mark.parametrize("kind", ["memory", "samples"])
def test_every_sample_once_an_epoch_in_an_order_of_its_own(made: Any, kind: str) -> None:
    train = made(DATA[kind]()).train
    orders = [joined(train, epoch)[0][:, 0, 0, 0].to(torch.int64) for epoch in (0, 1, 1)]
    assert all(torch.equal(order.sort().values, torch.arange(ROWS)) for order in orders)
    assert not torch.equal(orders[0], orders[1])
    assert torch.equal(orders[1], orders[2])
    assert torch.equal(orders[1], train.order(1))
    assert not torch.equal(train.order(0), made(DATA[kind](), seed=4).train.order(0))


def test_evaluation_is_in_order_and_unchanged() -> None:
    split = {"by": "random", "val": 0.2, "test": 0.2}
    data = make(in_memory(), split=split, augment=[GaussianNoise()], eval_batch_size=3)
    for name in ("val", "test", "train"):
        loader = data.evaluation(name)
        assert loader is not None
        assert same(joined(loader, 0), joined(loader, 1))
        assert torch.equal(joined(loader, 0)[0][:, 0, 0, 0], data.rows[name].to(torch.float32))
        assert loader.batch_size == (8 if name == "train" else 3)
    assert data.evaluation("other") is None


@pytest.mark.parametrize(
    ("kind", "augment", "shared"), [("memory", (), True), ("memory", AUGMENT, False), ("samples", (), False)]
)
def test_another_seed_makes_loaders_anew_that_may_go_by_it(made: Any, kind: str, augment: Any, shared: bool) -> None:
    data = made(DATA[kind](), split={"by": "random", "val": 0.2, "test": 0.0}, augment=augment)
    other = data.reseeded(5)
    assert (other.val is data.val) is (kind == "memory")
    assert other.train is not data.train
    plain = data.train.with_rows(data.train.rows, shuffle=False)
    assert (plain.with_rows(plain.rows, seed=5) is plain) is shared
    assert plain.with_rows(plain.rows[:3], seed=5).num_samples == 3


@pytest.mark.parametrize("kind", ["memory", "samples", "drawn"])
def test_drop_last(made: Any, kind: str) -> None:
    train = made(DATA[kind](), drop_last=True).train
    assert (train.num_samples, train.epoch_samples, len(train)) == (41, 40, 5)
    assert [len(x) for x, _ in train.epoch(0)] == [8] * 5
    assert [len(x) for x, _ in train.epoch(0, 7)] == [8] * 4 + [1]
    whole = made(DATA[kind]()).train
    assert (whole.epoch_samples, len(whole)) == (41, 6)
    assert [len(x) for x, _ in whole.epoch(0)] == [8] * 5 + [1]


def test_skipped_samples_are_not_read_and_what_draws_nothing_is_not_seeded() -> None:
    read: list[int] = []

    class Noted(Silent):
        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            read.append(row)
            return super().__getitem__(row)

    train = make(Noted()).train
    read.clear()
    random.seed(5)
    expected = random.random()
    random.seed(5)
    joined(train, 1, 32)
    assert read == train.order(1)[32:].tolist()
    assert random.random() == expected


def test_repeated_rows_are_augmented_differently() -> None:
    loader = make(in_memory(), augment=[GaussianNoise()]).train.with_rows(torch.zeros(16, dtype=torch.int64), seed=9)
    x, _ = joined(loader, 0)
    assert len(x.reshape(16, -1).unique(dim=0)) == 16
    assert loader.options.seed == 9


def test_any_nesting_of_tensors_passes() -> None:
    class Pairs(Silent):
        def __getitem__(self, row: int) -> Any:
            return {"left": torch.tensor(row), "right": (torch.zeros(2), row * 0.5)}

    data = make(Pairs())
    batch = next(data.evaluation("train").epoch(0))  # type: ignore[union-attr]
    assert data.info.task == "custom"
    assert batch["left"].tolist() == list(range(8))
    assert batch["right"][0].shape == (8, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("kind", ["memory", "samples"])
def test_pinning_without_a_gpu_does_nothing(kind: str) -> None:
    assert same(joined(make(DATA[kind](), pin_memory=True).train, 0), joined(make(DATA[kind]()).train, 0))


@pytest.mark.gpu
@KINDS
def test_batches_are_pinned_for_a_gpu(made: Any, kind: str, workers: int) -> None:
    data = made(DATA[kind](), num_workers=workers, pin_memory=True)
    assert all(x.is_pinned() and y.is_pinned() for x, y in data.train.epoch(0))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("normalizer", [None, lambda x: x * 2])
def test_a_block_that_is_entered_within_has_its_batches_where_they_would_be(ranks: int, normalizer: Any) -> None:
    """The last bits of a matrix product depend on the alignment of its operands."""
    x, y = torch.randn(9000, 3), torch.rand(9000)
    options = LoaderOptions(7, shuffle=True, replica=ranks - 1, replicas=ranks)
    loader = Loader(TensorData(x, y), torch.arange(9000), options, prepare=Prepare(normalizer=normalizer))
    whole = list(loader.epoch(0))
    if ranks == 1 and normalizer is None:  # as a plain gather has them
        assert all(same(batch, (x[rows], y[rows])) for batch, rows in zip(whole, loader.order(0).split(7), strict=True))
    places = [(left.data_ptr() % 64, right.data_ptr() % 64) for left, right in whole]
    assert len(set(places)) > 2
    for done in (1, 5, 63, 64, 70, 130, len(whole) - 1, len(whole)):
        rest = list(loader.epoch(0, min(7 * done, 9000)))
        assert [(left.data_ptr() % 64, right.data_ptr() % 64) for left, right in rest] == places[done:]
        assert all(same(one, other) for one, other in zip(rest, whole[done:], strict=True))
    assert len(list(loader.epoch(0, 10))) == len(whole) - 1


@pytest.mark.parametrize(("kind", "workers"), [("memory", 0), ("samples", 0), ("samples", 2)])
def test_global_generators_are_left_alone(made: Any, kind: str, workers: int) -> None:
    data = made(DATA[kind](), num_workers=workers, augment=(GaussianNoise(),), mixup={"alpha": 0.4})
    states = []
    for _ in range(2):
        states.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
        joined(data.train, 0)
    assert states[0] == states[1]


@pytest.mark.parametrize("batches", [2, 7])
@KINDS
def test_an_epoch_of_so_many_batches_goes_on_where_the_one_before_ended(
    made: Any, kind: str, workers: int, batches: int
) -> None:
    whole = made(DATA[kind](), drop_last=True).train
    passes = torch.cat([whole.order(number) for number in range(5)])
    data = made(DATA[kind](), num_workers=workers, epoch_batches=batches, augment=AUGMENT)
    train, size = data.train, 8 * batches
    assert (len(train), train.epoch_samples) == (batches, size)
    assert torch.equal(torch.cat([train.order(epoch) for epoch in range(3)]), passes[: 3 * size])
    for epoch in (0, 1):
        assert [len(x) for x, _ in train.epoch(epoch)] == [8] * batches, "none is smaller at the end of a pass"
        x, y = joined(train, epoch)
        assert same(joined(train, epoch, 11), (x[11:], y[11:]))
    assert data.evaluation("train").epoch_samples == train.num_samples == ROWS
    assert train.with_rows(train.rows, seed=5).epoch_samples == size
    assert train.with_rows(train.rows, shuffle=False).epoch_samples == ROWS
