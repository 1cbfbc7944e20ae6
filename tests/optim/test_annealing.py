"""Schedules along a smooth curve."""

from __future__ import annotations

import math

import pytest
import torch

from lightkit.optim import Cosine, Linear, OneCycle
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
