"""Which rate the losses of a rising rate speak for."""

from __future__ import annotations

import math
import random

import pytest

from lightkit.finders.suggestion import LossAtRate, smooth, suggest


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


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("lowest", [1e-3, 0.05, 0.8])
def test_a_tenth_of_the_rate_with_the_lowest_loss(lowest: float, noise: float) -> None:
    found = suggest(curve(lowest, noise=noise))
    assert found is not None
    assert lowest / 25 < found.lr < lowest / 4
    assert found.harmful is not None
    assert found.lowest.lr < found.harmful < 10 * lowest
    assert found.steepest.lr <= found.lowest.lr
    assert f"{found.lowest.lr:.2g}" in found.reason


def test_the_loss_of_the_smallest_rates_is_where_it_began() -> None:
    found = suggest(curve(start=4.0))
    assert found is not None
    assert found.start == pytest.approx(4.0, abs=0.05)
    assert "from 4 to 3" in found.reason


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_none_where_the_loss_does_not_fall(noise: float) -> None:
    assert suggest(curve(fall=0.0, noise=noise)) is None
    rising = [LossAtRate(point.lr, 1.0 + number) for number, point in enumerate(curve())]
    assert suggest(rising) is None


def test_none_of_a_few_points() -> None:
    assert suggest([]) is None
    assert suggest(curve()[:4]) is None


def test_a_loss_that_never_rises_is_told() -> None:
    found = suggest(curve(lowest=1e3, fall=3.0))
    assert found is not None
    assert found.harmful is None
    assert "has not risen up to 10, the largest tried" in found.reason


def test_losses_below_zero() -> None:
    found = suggest(curve(start=-5.0))
    assert found is not None
    assert 0.001 < found.lr < 0.05


def test_smoothing_shifts_nothing() -> None:
    values = [0.0] * 20 + [1.0] + [0.0] * 20
    found = smooth(values)
    assert found.index(max(found)) == 20
    assert found == pytest.approx(found[::-1])
    assert smooth([2.0] * 30) == pytest.approx([2.0] * 30)
