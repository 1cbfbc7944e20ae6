"""Schedules that need not know how long the run will be."""

from __future__ import annotations

import math

import pytest

from lightkit.common.errors import UserError
from lightkit.optim import InverseSquareRoot, WarmupStableDecay
from tests.optim.test_schedulers import curve, make


def test_the_rate_is_held_and_falls_at_the_end_alone():
    rates = curve(make(WarmupStableDecay, total=20, warmup_steps=3, decay_share=0.25, shape="linear", floor=0.2))
    assert rates == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 13 + [0.84, 0.68, 0.52, 0.36])
    halfway = [make(WarmupStableDecay, total=20, decay_share=0.2, shape=shape).factor(18) for shape in SHAPES]
    assert halfway == pytest.approx([0.5, 0.5, 1 - math.sqrt(0.5)])


SHAPES = ("linear", "cosine", "sqrt")


def test_a_run_that_is_made_longer_before_the_decay_is_that_of_the_longer_one():
    schedule, longer = make(WarmupStableDecay, total=10), curve(make(WarmupStableDecay, total=40))
    begun = curve(schedule, 8)
    schedule.total_steps = 40
    schedule.refresh()
    assert begun + curve(schedule, 32) == pytest.approx(longer)


@pytest.mark.parametrize(("total", "share"), [(1, 1.0), (3, 1e-6), (4, 1.0)])
def test_short_runs_have_a_decay_of_one_step_at_least(total, share):
    rates = curve(make(WarmupStableDecay, total=total, decay_share=share))
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)


def test_the_inverse_square_root_is_that_of_the_paper():
    schedule, warmup = make(InverseSquareRoot, total=60, warmup_steps=9), 9
    paper = [min((step + 1) ** -0.5, (step + 1) * (warmup + 1) ** -1.5) for step in range(60)]
    peak = max(paper)
    assert curve(schedule) == pytest.approx([value / peak for value in paper], rel=0.06)
    assert schedule.factor(2 * warmup) == pytest.approx(math.sqrt(0.5)), "after as many steps as the warm-up"
    assert make(InverseSquareRoot, total=5).factor(10_000) == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (WarmupStableDecay, {"decay_share": 0.0}, "decay_share: not a share"),
        (WarmupStableDecay, {"decay_share": 1.5}, "decay_share: not a share"),
        (WarmupStableDecay, {"shape": "cubic"}, r"shape: no such shape[\s\S]*sqrt"),
        (WarmupStableDecay, {"floor": -0.1}, "floor: not a share"),
        (InverseSquareRoot, {"timescale": 0}, "timescale: out of range"),
    ],
)
def test_what_is_out_of_range_is_told(kind, options, words):
    with pytest.raises(UserError, match=words):
        make(kind, **options)
