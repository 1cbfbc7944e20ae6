"""How many loader processes a run can use."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import lightkit.finders.workers as finder
from lightkit.config import compose
from lightkit.finders.workers import FoundWorkers, Speed, candidates, measure

SLOW = [
    "data=custom",
    "data.dataset._target_=tests.finders.test_workers.Slow",
    "data.batch_size=4",
    "model.hidden=[4]",
    "device=cpu",
    "logger=quiet",
    "metrics.figures=[]",
]


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for a fraction of a second."""
    monkeypatch.setattr(finder, "SECONDS", 0.2)


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
    measure(compose([*overrides]).cfg, answers.append, numbers=numbers)
    return answers


@pytest.mark.parametrize(
    ("cpus", "configured", "expected"),
    [(1, 0, [0, 1]), (2, 0, [0, 1, 2]), (6, 3, [0, 1, 2, 3, 4, 6]), (8, 12, [0, 1, 2, 4, 8, 12]), (2, 9, [0, 1, 2, 4])],
)  # fmt: skip
def test_numbers_that_are_tried(cpus: int, configured: int, expected: list[int]) -> None:
    assert candidates(cpus, configured) == expected


def speeds(*samples: float, waited: float = 0.5) -> tuple[Speed, ...]:
    return tuple(Speed(workers, each, waited, 0.1) for workers, each in zip((0, 1, 2, 4), samples))


def test_the_fewest_that_are_about_as_fast_as_the_best() -> None:
    assert FoundWorkers(speeds(100, 200, 390, 400), 800, 4, 0).suggested == 2
    assert FoundWorkers(speeds(100, 99, 98, 60), 800, 4, 0).suggested == 0
    assert FoundWorkers(speeds(100, 200, 390, 600), 800, 4, 0).suggested == 4


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


def test_an_epoch_that_is_shorter_than_the_measurement() -> None:
    (found, _) = measured(*SLOW, "data.batch_size=64", "data.drop_last=false")
    assert found["samples"] > 0
