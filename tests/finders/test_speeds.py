"""How fast training is with other numbers of loader processes, and with batches of other sizes."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import lightkit.finders.speeds as finder
from lightkit.config import compose
from lightkit.finders.speeds import (
    FoundThroughput,
    FoundWorkers,
    Speed,
    Throughput,
    measure_batch,
    measure_workers,
    numbers_to_try,
    sizes_to_try,
)
from lightkit.finders.steps import TrialSteps

SLOW = [
    *("data=custom", "data.dataset._target_=tests.finders.test_speeds.Slow", "data.batch_size=4"),
    *("model.hidden=[4]", "device=cpu", "logger=quiet", "metrics.figures=[]"),
]


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for a fraction of a second."""
    monkeypatch.setattr(finder, "WORKERS_SECONDS", 0.2)


class Slow(torch.utils.data.Dataset[Any]):
    """Takes its time for each sample."""

    draws = False

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.002)
        return torch.full((3,), float(index)), index % 2


def measured(*overrides: str, numbers: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    measure_workers(compose([*overrides]).cfg, answers.append, numbers=numbers)
    return answers


@pytest.mark.parametrize(
    ("cpus", "configured", "expected"),
    [(1, 0, [0, 1]), (6, 3, [0, 1, 2, 3, 4, 6]), (8, 12, [0, 1, 2, 4, 8, 12]), (2, 9, [0, 1, 2, 4])],
)  # fmt: skip
def test_numbers_that_are_tried(cpus: int, configured: int, expected: list[int]) -> None:
    assert numbers_to_try(cpus, configured) == expected


def speeds(*samples: float, waited: float = 0.5) -> tuple[Speed, ...]:
    return tuple(Speed(workers, each, waited, 0.1) for workers, each in zip((0, 1, 2, 4), samples))


def test_the_fewest_that_are_about_as_fast_as_the_best() -> None:
    for samples, suggested in (((100, 200, 390, 400), 2), ((100, 99, 98, 60), 0), ((100, 200, 390, 600), 4)):
        assert FoundWorkers(speeds(*samples), 800, 4, 0).suggested == suggested


def test_reasons() -> None:
    waiting = FoundWorkers(speeds(100, 200, 390, 400), 800, 4, 0).reason
    assert waiting.startswith("390 samples a second, 3.9 times as many as with 0; training still waits 50%")
    assert waiting.endswith("more processes bring no more")
    assert "all 4 CPUs are taken" in FoundWorkers(speeds(100, 200, 390, 600), 800, 4, 0).reason
    assert FoundWorkers(speeds(100, 200, 390, 600), 800, 16, 0).reason.endswith("more may help")
    busy = FoundWorkers(speeds(100, 99, waited=0.01), 101, 4, 0).reason
    assert busy == "100 samples a second; the computation does not wait for batches, so more bring nothing"
    assert FoundWorkers((), 0.0, 4, 2).suggested == 0
    assert "loader processes do nothing" in FoundWorkers((), 0.0, 4, 2).reason


def test_a_data_set_that_makes_whole_batches() -> None:
    assert measured("data=wine", "device=cpu", "model.hidden=[4]") == [{"end": True, "compute": 0.0}]


def test_what_waits_for_samples_is_told() -> None:
    alone, worker, end = measured(*SLOW, "trainer.accumulate=2", numbers=(0, 1))
    assert (alone["workers"], worker["workers"]) == (0, 1)
    assert alone["waited"] > 0.2, "the samples take longer than the computation"
    assert 0 < alone["samples"] < 500
    assert worker["first"] > 0
    assert end["compute"] > alone["samples"]


WINE = ["data=wine", "model.hidden=[4]", "device=cpu", "metrics.figures=[]", "logger=quiet"]


def found(*samples: float, configured: int = 16, largest: int = 128, rows: int = 120) -> FoundThroughput:
    speeds = tuple(Throughput(8 << place, each) for place, each in enumerate(samples))
    return FoundThroughput(speeds, rows, configured, largest)


@pytest.mark.parametrize(
    ("largest", "configured", "least", "expected"),
    [
        (120, 16, 1, [8, 16, 32, 64, 120]),
        (64, 48, 1, [8, 16, 32, 48, 64]),
        (64, 256, 1, [8, 16, 32, 64]),
        (5, 16, 1, [2, 4, 5]),
        (1, 16, 1, [1]),
        (40, 4, 3, [8, 16, 32, 40, 4]),
        (100, 16, 12, [12, 16, 24, 48, 96, 100]),
    ],
)
def test_sizes_that_are_tried(largest: int, configured: int, least: int, expected: list[int]) -> None:
    assert sizes_to_try(largest, configured, least=least) == sorted(expected)


def test_the_smallest_that_is_about_as_fast_as_the_fastest() -> None:
    assert found(100, 190, 290, 310, 300).suggested == 32
    assert found(100, 200, 400, 800, 1600).suggested == 128
    assert found(100, 99, 98).suggested == 8


def test_reasons_for_a_size() -> None:
    said = found(100, 190, 290, 310, 300).reason.splitlines()
    assert said == [
        "32: 290 samples a second; the most is 310 at 64, less than 10% more",
        "a step sees 2 times the 16 of data.batch_size, an epoch has 4 steps: the learning rate is not adapted to that",
    ]
    assert found(100, 200, 400, 800, 1600).reason.startswith("128: 1,600 samples a second, the most, and no larger")
    assert "an epoch has 1 step:" in found(100, 200, 400, 800, 1600).reason
    assert found(100, 200, 190, configured=16).reason == (
        "16: 200 samples a second, and no size that was tried has more"
    )


def test_larger_ones_are_tried_until_they_bring_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {8: 100.0, 16: 150.0, 32: 151.0, 64: 152.0, 128: 900.0}
    monkeypatch.setattr(TrialSteps, "compute_speed", lambda self, size, *, seconds: speeds[size])
    answers: list[dict[str, Any]] = []
    measure_batch(compose(WINE).cfg, answers.append, sizes=[8, 16, 32, 64, 128], ranks=1, configured=16)
    assert [answer.get("size") for answer in answers] == [8, 16, 32, 64, None]
    assert answers[-1] == {"end": True, "rows": 124}
    answers.clear()
    measure_batch(compose(WINE).cfg, answers.append, sizes=[8, 16, 32, 64, 128], ranks=1, configured=100)
    assert [answer.get("size") for answer in answers][-2:] == [64, None], "none that is larger than what is configured"
    answers.clear()
    measure_batch(compose(WINE).cfg, answers.append, sizes=[16], ranks=2, configured=16)
    assert answers[0] == {"size": 16, "samples": 200.0}, "each of two processes has 8"
