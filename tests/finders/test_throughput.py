"""How many samples a second batches of each size come to."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.config import compose
from lightkit.finders.steps import TrialSteps
from lightkit.finders.throughput import FoundThroughput, Throughput, candidates, measure

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
    assert candidates(largest, configured, least=least) == sorted(expected)


def test_the_smallest_that_is_about_as_fast_as_the_fastest() -> None:
    assert found(100, 190, 290, 310, 300).suggested == 32
    assert found(100, 200, 400, 800, 1600).suggested == 128
    assert found(100, 99, 98).suggested == 8


def test_reasons() -> None:
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
    measure(compose(WINE).cfg, answers.append, sizes=[8, 16, 32, 64, 128], ranks=1, configured=16)
    assert [answer.get("size") for answer in answers] == [8, 16, 32, 64, None]
    assert answers[-1] == {"end": True, "rows": 124}
    answers.clear()
    measure(compose(WINE).cfg, answers.append, sizes=[8, 16, 32, 64, 128], ranks=1, configured=100)
    assert [answer.get("size") for answer in answers][-2:] == [64, None], "none that is larger than what is configured"
    answers.clear()
    measure(compose(WINE).cfg, answers.append, sizes=[16], ranks=2, configured=16)
    assert answers[0] == {"size": 16, "samples": 200.0}, "each of two processes has 8"
