"""Samplers: the order of an epoch is a function of seed and epoch, whoever asks for it."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, Sampler, SubsetRandomSampler

from lightkit.common.doors import SHIPPED, import_path
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.data import Loader, TensorData
from lightkit.data.prepare import LoaderOptions
from lightkit.data.row_facts import row_weights
from lightkit.data.samplers import KEY, Balanced, ByLength, EpochOrder, Shuffled
from tests.conftest import Cli

TARGETS = torch.tensor([0] * 30 + [1] * 6 + [2] * 4)
ROWS = torch.arange(39, -1, -1)


class Given(Sampler[Any]):
    """Gives what it was given; `length` is what it says of it."""

    def __init__(self, found: Any, length: Any = 40) -> None:
        self.found, self.length = found, length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter(self.found)


class ByEpoch(Sampler[int]):
    """Begins elsewhere in each epoch, with all generators asked."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples, self.epoch = num_samples, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        drawn = random.randrange(5) + int(np.random.randint(5)) + int(torch.randint(5, ()))
        return iter([(self.epoch + drawn + at) % self.num_samples for at in range(10)])


def loader(make: Any, **options: Any) -> Loader:
    source = TensorData(torch.arange(40.0)[:, None], TARGETS)
    return Loader(source, ROWS, LoaderOptions(8, shuffle=True, seed=3, sampler=make, **options))


def seen(made: Loader, epoch: int, start: int = 0) -> list[int]:
    return [int(value) for x, _ in made.epoch(epoch, start) for value in x]


def test_rows_are_shuffled_as_they_always_were() -> None:
    for epoch in (0, 5):
        generator = torch.Generator().manual_seed(mix(3, "order", epoch))
        assert torch.equal(loader(None).order(epoch), ROWS[torch.randperm(40, generator=generator)])
    assert len(Shuffled(7)) == 7


@pytest.mark.parametrize(
    "make", [lambda **facts: ByEpoch(facts["num_samples"]), lambda **facts: Balanced(facts["targets"], 32)]
)
def test_an_epoch_is_entered_anywhere_by_any_number_of_processes(make: Any) -> None:
    made, states = loader(make), (random.getstate(), torch.get_rng_state())
    assert made.num_samples == made.epoch_samples == len(seen(made, 0)) < 40
    for epoch in (0, 1):
        whole = seen(made, epoch)
        assert seen(loader(make), epoch, 5) == whole[5:]
        halves = [seen(loader(make, replicas=2, replica=rank), epoch) for rank in range(2)]
        assert Counter(halves[0] + halves[1]) == Counter(whole)
    assert seen(made, 0) != seen(made, 1)
    assert (random.getstate(), torch.equal(torch.get_rng_state(), states[1])) == (states[0], True)
    assert [one.drawn for one in (Loader(made.source, ROWS, made.options.for_evaluation("val")),)] == [None]


def test_classes_are_drawn_alike_and_other_rows_have_other_targets() -> None:
    made = loader(lambda **facts: Balanced(facts["targets"], 3000))
    counts = TARGETS[made.order(0)].bincount()
    assert (counts - 1000).abs().max() < 120
    few = made.with_rows(ROWS[:10])  # those of classes 1 and 2
    assert {*few.order(0).tolist()} == {*ROWS[:10].tolist()}
    with pytest.raises(UserError, match="no classes to balance"):
        Balanced(torch.rand(3), 3)


class Told(TensorData):
    """Tells weights and lengths of its rows."""

    weights = torch.tensor([0.0, 1.0, 3.0, 0.0] * 10)
    lengths = torch.arange(40) * 17 % 40


def named(name: str, source: TensorData | None = None, **options: Any) -> Loader:
    source = source or Told(torch.arange(40.0)[:, None], TARGETS)
    kind: Any = import_path(SHIPPED[KEY][name])
    taken = inspect.signature(kind).parameters
    weights = row_weights(source, "weights", ROWS)

    def make(**facts: Any) -> Any:
        return kind(**{fact: value for fact, value in facts.items() if fact in taken})

    return Loader(source, ROWS, LoaderOptions(8, shuffle=True, seed=3, sampler=make, weights=weights, **options))


@pytest.mark.parametrize("name", SHIPPED[KEY])
def test_named_samplers_are_functions_of_seed_and_epoch(name: str) -> None:
    def read(start: int = 0, **options: Any) -> Any:
        batches = [*named(name, **options).epoch(1, start)]
        assert {len(batch) for batch in batches} == {2 if name == "weighted" else 3}  # the draw weighs already
        return [torch.cat(parts) for parts in zip(*batches)]

    whole = read()
    for part, rest in zip(whole, read(13)):
        assert torch.equal(part[13:], rest)
    halves = [read(replicas=2, replica=rank) for rank in range(2)]
    for part, *own in zip(whole, *halves):
        assert torch.equal(torch.cat(own).flatten().sort().values, part.flatten().sort().values)
    assert len(whole) == 2 or torch.equal(whole[2], named(name).options.weights[whole[0][:, 0].long()])


def test_what_named_samplers_draw() -> None:
    assert torch.equal(named("none").order(4), ROWS)
    assert torch.equal(named("shuffle").order(4), loader(None).order(4))
    drawn = Told.weights[torch.cat([named("weighted").order(epoch) for epoch in range(100)])]
    assert {*drawn.tolist()} == {1.0, 3.0}
    assert 2.6 < float((drawn == 3).sum() / (drawn == 1).sum()) < 3.4
    windows = Loader(
        Told(torch.arange(40.0)[:, None], TARGETS),
        ROWS,
        LoaderOptions(8, shuffle=True, sampler=lambda lengths, **_: ByLength(lengths, window=12)),
    )
    found = [Told.lengths[windows.order(epoch)] for epoch in range(4)]
    assert all(order[0] == 39 and torch.equal(order.sort().values, torch.arange(40)) for order in found)
    assert all((order.diff() > 0).sum() <= 3 for order in found)  # sorted window by window
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("name", ["weighted", "length"])
def test_a_sampler_without_its_facts_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="the data set has no attribute `(weights|lengths)`"):
        named(name, TensorData(torch.zeros(40, 1), TARGETS))
    with pytest.raises(UserError, match="no attribute `targets`"):
        Balanced()


def test_samplers_of_pytorch() -> None:
    repeated = loader(lambda **facts: RandomSampler(facts["data_source"], replacement=True, num_samples=70))
    assert (repeated.num_samples, len(seen(repeated, 0))) == (70, 70)
    subset = loader(lambda **_: SubsetRandomSampler([0, 1, 2]))
    assert sorted(seen(subset, 1)) == [37, 38, 39]
    assert len(list(loader(lambda **_: SubsetRandomSampler(range(9)), drop_last=True).epoch(0))) == 1


@pytest.mark.parametrize(
    ("found", "length", "message"),
    [
        ([0, 40], 2, "numbers from 0 to 40"),
        ([-1, 0], 2, "numbers from -1 to 0"),
        ([0], 2, "1 of them"),
        ([[0, 1]], 1, r"data\.batch_size rows each"),
        ([[0], [0, 1]], 2, "no positions of rows"),
        ([0.5, 1.0], 2, "torch.float32"),
        ([torch.tensor([True, False])], 2, "torch.bool"),
        (["a", "b"], 2, "no positions"),
        (5, 1, "Given failed: TypeError"),
        ([], 0, "takes no samples"),
        ([], "2", "does not say how long an epoch is"),
    ],
)
def test_what_is_no_order_of_rows_is_refused(found: Any, length: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        loader(lambda **_: Given(found, length)).order(0)
    assert caught.value.key == "data.sampler"


def test_a_sampler_that_goes_its_own_way_is_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    own = EpochOrder(lambda **_: RandomSampler(range(40), generator=generator), ROWS, [0] * 40)
    with pytest.raises(UserError, match="drawn differently the second time"):
        own.check(0)
    EpochOrder(lambda num_samples, data_source: RandomSampler(data_source), ROWS, [0] * 40).check(0)


SHORT = (
    "train",
    "data=wine",
    "trainer.steps=3",
    "device=cpu",
    "metrics.figures=[]",
    "logger.tensorboard.enabled=false",
)


def test_a_run_draws_by_a_class_of_the_project(project: Path, cli: Cli) -> None:
    (project / "drawn.py").write_text(
        "from torch.utils.data import WeightedRandomSampler\n\n\n"
        "class Rare(WeightedRandomSampler):\n"
        "    def __init__(self, targets, times=1):\n"
        "        super().__init__(1 / targets.bincount()[targets], times * len(targets))\n"
    )
    done = cli(*SHORT, "data.sampler={_target_: drawn.Rare, times: 2}")
    assert (done.code, "data.sampler: an epoch has 248 samples of 124 training rows" in done.out) == (0, True), (
        done.out + done.err
    )
    wrong = [
        ("{_target_: drawn.Rare, time: 2}", "did you mean data.sampler.times?"),
        ("{_target_: torch.nn.ReLU}", "a sampler (torch.utils.data.Sampler)"),
    ]
    for node, message in wrong:
        refused = cli(*SHORT, f"data.sampler={node}")
        assert (refused.code, message in refused.err) == (2, True), refused.err
    unfit = cli(*SHORT, "data=diabetes", "data.sampler._target_=lightkit.data.samplers.Balanced")
    assert (unfit.code, "data.sampler: there are no classes to balance" in unfit.err) == (2, True), unfit.err
