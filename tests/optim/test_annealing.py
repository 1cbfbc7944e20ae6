"""Schedules along a smooth curve."""

from __future__ import annotations

import math

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.optim import Cosine, Linear, OneCycle, Plateau, Step
from tests.optim.test_schedulers import curve, make, optimizer


def test_linear():
    assert curve(make(Linear, 2.0, floor=0.5)) == pytest.approx([2 - i / 10 for i in range(10)])
    assert curve(make(Linear, warmup_steps=2)) == pytest.approx([1 / 3, 2 / 3, *(1 - i / 8 for i in range(8))])


def test_linear_per_epoch():
    assert curve(make(Linear, interval="epoch")) == pytest.approx([1.0] * 5 + [0.5] * 5)


def test_cosine_is_torchs():
    ours = curve(make(Cosine, 0.3, floor=0.1))
    opt = optimizer(0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10, eta_min=0.03)
    for rate in ours:
        assert rate == pytest.approx(opt.param_groups[0]["lr"])
        opt.step()
        theirs.step()


def test_cosine_restarts():
    half = [0.5 * (1 + math.cos(math.pi * i / 5)) for i in range(5)]
    assert curve(make(Cosine, cycles=2, cycle_scale=0.5)) == pytest.approx(half + [0.5 * h for h in half])


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("anneal", ["cosine", "linear"])
@pytest.mark.parametrize(
    ("total", "peak", "divisors"),
    [
        (100, 0.3, (25.0, 1e4)),
        (100, 0.25, (10.0, 100.0)),
        (20, 0.5, (25.0, 1e4)),
        (19, 0.3, (4.0, 2.0)),
        (7, 0.45, (25.0, 1e4)),
        (3, 0.3, (25.0, 1e4)),
        (2, 0.1, (25.0, 1e4)),
        (1, 0.3, (25.0, 1e4)),
        (1000, 0.01, (1.0, 1e3)),
    ],
)
def test_one_cycle_is_torchs(total, peak, divisors, anneal, three_phase):
    first, last = divisors
    shape = {"peak": peak, "start": 1 / first, "floor": 1 / (first * last), "anneal": anneal}
    check_torchs(total, peak, divisors, anneal, three_phase, shape)


def test_one_cycle_is_torchs_as_both_come():
    check_torchs(80, 0.3, (25.0, 1e4), "cosine", False, {})


def check_torchs(total, peak, divisors, anneal, three_phase, shape):
    schedule = make(OneCycle, 0.5, 0.1, total=total, three_phase=three_phase, **shape)
    opt = optimizer(0.5, 0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        opt,
        max_lr=[0.5, 0.1],
        total_steps=total,
        pct_start=peak,
        anneal_strategy={"cosine": "cos", "linear": "linear"}[anneal],
        div_factor=divisors[0],
        final_div_factor=divisors[1],
        three_phase=three_phase,
    )
    for step in range(total):
        wanted = [group["lr"] for group in opt.param_groups]
        assert [group["lr"] for group in schedule.optimizer.param_groups] == pytest.approx(wanted, rel=1e-12), step
        schedule.step()
        opt.step()
        if step < total - 1:
            theirs.step()


def test_one_cycle_whose_peak_is_the_first_step_begins_there():
    rates = curve(make(OneCycle, 0.5, total=10, peak=0.1, floor=0.0))
    assert rates[0] == 0.5
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0.0


def test_a_longer_one_cycle_goes_on_along_the_longer_curve():
    schedule, longer = make(OneCycle, total=10), curve(make(OneCycle, total=16))
    curve(schedule, 7)
    schedule.total_steps = 16
    schedule.refresh()
    assert curve(schedule, 9) == pytest.approx(longer[7:])
    schedule.step()
    assert schedule.optimizer.param_groups[0]["lr"] == pytest.approx(4e-6)


def test_step_at_milestones():
    schedule = make(Step, total=20, milestones=[1, 2.4], gamma=0.1, floor=0.05)
    assert curve(schedule) == pytest.approx([1.0] * 5 + [0.1] * 7 + [0.05] * 8)


def test_step_every_few_epochs():
    assert curve(make(Step, total=20, every_epochs=1.4, gamma=0.5)) == pytest.approx(
        [0.5 ** (i // 7) for i in range(20)]
    )


def test_plateau_waits_and_falls():
    schedule = make(Plateau, 1.0, mode="max", factor=0.5, patience=1, cooldown=1, floor=0.2)
    assert schedule.monitored
    rates = []
    for value in [0.5, 0.6, 0.6, math.nan, 0.6, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]:
        schedule.epoch_end(value)
        rates.append(schedule.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2])


@pytest.mark.parametrize(("mode", "values"), [("min", [1.0, 0.95]), ("max", [1.0, 1.05])])
def test_plateau_counts_changes_above_the_threshold_only(mode, values):
    for threshold, expected in ((0.0, 1.0), (0.1, 0.1)):
        schedule = make(Plateau, mode=mode, patience=0, threshold=threshold)
        for value in values:
            schedule.epoch_end(value)
        assert schedule.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_plateau_falls_during_warmup_too():
    schedule = make(Plateau, mode="min", patience=0, warmup_steps=1)
    schedule.epoch_end(1.0)
    schedule.epoch_end(1.0)
    assert curve(schedule, 3) == pytest.approx([0.5, 0.1, 0.1])


def test_plateau_without_a_value():
    with pytest.raises(UserError, match="plateau needs a validated value"):
        make(Plateau, mode="min").epoch_end(None)
