"""Which rate the losses of a rising rate, and of short trainings, speak for."""

from __future__ import annotations

import math
import random

import pytest

from lightkit.finders.lr import (
    MOST_TRAININGS,
    LossAtRate,
    RateRange,
    ShortTraining,
    next_rate,
    read_range,
    smooth,
    suggest,
)


def curve(lowest: float = 0.05, *, start: float = 2.3, fall: float = 1.0, noise: float = 0.0, steps: int = 100,
          rise: float = 8.0, high: float = 10.0) -> list[LossAtRate]:  # fmt: skip
    """Losses that fall from three decades below the lowest one on, and rise behind it."""
    draw, points = random.Random(0), []
    for number in range(steps):
        lr = 1e-6 * (high / 1e-6) ** (number / (steps - 1))
        away = math.log10(lr / lowest)
        depth = max(0.0, 1 + away / 3) if away < 0 else 1 - rise * away
        points.append(LossAtRate(lr, start - fall * depth + draw.gauss(0, noise)))
    return points


def range_of(points: list[LossAtRate]) -> RateRange:
    found = read_range(points)
    assert found is not None
    return found


def trainings(*losses: float, low: float = 0.001, noise: float = 0.0, best: int = 0) -> list[ShortTraining]:
    """Trainings with rates that triple, of these losses; that of one place has no noise."""
    draw = random.Random(1)
    found = []
    for place, loss in enumerate(losses):
        last = [loss + (0.0 if place == best else draw.gauss(0, noise)) for _ in range(12)]
        found.append(ShortTraining(low * 3**place, tuple(last) if math.isfinite(loss) else ()))
    return found


@pytest.mark.parametrize(("lowest", "noise"), [(1e-3, 0.0), (0.05, 0.1), (0.8, 0.03)])
def test_where_the_loss_is_lowest_and_where_it_rises(lowest: float, noise: float) -> None:
    found = range_of(curve(lowest, noise=noise))
    assert lowest / 2.5 < found.lowest.lr < 2.5 * lowest
    assert found.harmful is not None
    assert found.lowest.lr < found.harmful < 10 * lowest
    assert found.steepest.lr <= found.lowest.lr


def test_what_a_curve_says() -> None:
    assert range_of(curve(start=4.0)).start == pytest.approx(4.0, abs=0.05), (
        "the smallest rates leave it where it began"
    )
    assert range_of(curve(lowest=1e3, fall=3.0)).harmful is None, "a loss that never rises"
    assert 0.01 < range_of(curve(start=-5.0)).lowest.lr < 0.2, "losses below zero"
    rising = [LossAtRate(point.lr, 1.0 + number) for number, point in enumerate(curve())]
    for nothing in (curve(fall=0.0), curve(fall=0.0, noise=0.1), rising, [], curve()[:4]):
        assert read_range(nothing) is None


@pytest.mark.parametrize("best", [1e-4, 0.02, 0.4])
def test_trainings_go_to_where_the_loss_gets_lower(best: float) -> None:
    found, tried = range_of(curve(0.05)), list[ShortTraining]()
    while (rate := next_rate(found, tried)) is not None:
        tried.append(ShortTraining(rate, (abs(math.log(rate / best)),) * 12))
    assert tried[0].lr == pytest.approx(found.lowest.lr / 3, rel=0.1)
    assert len(tried) <= MOST_TRAININGS
    suggested = suggest(tried, short=50, total=50)
    assert suggested is not None
    assert best / 2 < suggested.lr < 2 * best or len(tried) == MOST_TRAININGS


def test_rates_that_diverge_end_the_way_up() -> None:
    found, tried = range_of(curve(0.05)), list[ShortTraining]()
    while (rate := next_rate(found, tried)) is not None:
        tried.append(ShortTraining(rate, () if rate > 0.02 else (1.0 - rate,) * 12))
    assert max(training.lr for training in tried) < 0.1
    suggested = suggest(tried, short=50, total=50)
    assert suggested is not None
    assert suggested.lr < 0.02
    assert "diverges" in suggested.reason


def test_nothing_is_suggested_where_all_diverge() -> None:
    assert suggest([], short=50, total=50) is None
    assert suggest(trainings(math.inf, math.inf), short=50, total=50) is None


def test_the_smallest_rate_that_trains_as_well_as_the_best() -> None:
    clear = suggest(trainings(0.9, 0.5, 0.4, 0.8, noise=0.05, best=2), short=50, total=50)
    assert clear is not None
    assert clear.lr == pytest.approx(0.009)
    assert clear.reason.startswith("of trainings of 50 steps 0.009 ends lowest: 0.4, 0.894 with 0.001, ")
    level = suggest(trainings(0.9, 0.39, 0.4, 0.8, noise=0.05, best=2), short=50, total=50)
    assert level is not None
    assert level.lr == pytest.approx(0.003)
    assert "0.003 ends as low as 0.009, within the scatter of the batches: 0.4" in level.reason


def test_a_longer_run_has_a_smaller_rate() -> None:
    found = suggest(trainings(0.9, 0.5, 0.4, 0.8, best=2), short=50, total=1600)
    assert found is not None
    assert found.lr == pytest.approx(0.009 / 3, rel=0.05), "a third for 32 times the steps"
    assert found.reason.endswith("; the run is 32 times as long, which wants 0.33 times that rate")


def test_smoothing_shifts_nothing() -> None:
    values = [0.0] * 20 + [1.0] + [0.0] * 20
    found = smooth(values)
    assert found.index(max(found)) == 20
    assert found == pytest.approx(found[::-1])
    assert smooth([2.0] * 30) == pytest.approx([2.0] * 30)
