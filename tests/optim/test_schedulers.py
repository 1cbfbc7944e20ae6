from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.optim import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    OneCycle,
    Plateau,
    Step,
    Torch,
    WarmupStableDecay,
)
from lightkit.optim.annealing import Triangular


def optimizer(*rates):
    groups = [
        {"params": [nn.Parameter(torch.zeros(2))], "lr": rate, "name": str(i)} for i, rate in enumerate(rates or (1.0,))
    ]
    return torch.optim.SGD(groups, lr=1.0)


def curve(schedule, steps=None):
    """Rates of the first group, step by step."""
    rates = []
    for _ in range(schedule.total_steps if steps is None else steps):
        rates.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.optimizer.step()
        schedule.step()
    return rates


def make(kind, *rates, total=10, epoch=5, **options):
    return kind(optimizer(*rates), total_steps=total, steps_per_epoch=epoch, **options)


def exponential(opt):
    return torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)


EVERY = [
    (Constant, {}),
    (Linear, {"floor": 0.1}),
    (Cosine, {"floor": 0.01, "cycles": 2}),
    (Triangular, {"high": 0.5, "low": 0.05}),
    (Step, {"every_epochs": 1, "gamma": 0.5}),
    (Plateau, {"mode": "min", "patience": 0}),
    (OneCycle, {}),
    (WarmupStableDecay, {"floor": 0.05}),
    (InverseSquareRoot, {"timescale": 3}),
    (Torch, {"scheduler": exponential}),
]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (5, [0.1, 0.3, 0.5, 0.3, 0.1]),
        (4, [0.1, 0.1 + 0.8 / 3, 0.1 + 0.8 / 3, 0.1]),
        (2, [0.1, 0.1]),
        (1, [0.1]),
    ],
)
def test_triangular_rises_to_the_middle_and_falls_back(steps, expected):
    assert curve(make(Triangular, 1.0, total=steps, high=0.5, low=0.1)) == pytest.approx(expected)


def test_warmup_rises_in_a_line_and_is_not_zero_at_the_start():
    assert curve(make(Constant, warmup_steps=4)) == pytest.approx([0.2, 0.4, 0.6, 0.8] + [1.0] * 6)
    assert curve(make(Constant, warmup_epochs=0.4)) == pytest.approx([1 / 3, 2 / 3] + [1.0] * 8)


@pytest.mark.parametrize(("kind", "options"), [*EVERY[:-1], (Cosine, {"floor": 0.5, "warmup_steps": 3})])
def test_the_ratio_of_groups_never_changes(kind, options):
    schedule = make(kind, 0.1, 0.025, 1e-5, **options)
    for step in range(15):
        rates = [group["lr"] for group in schedule.optimizer.param_groups]
        assert rates == [own * schedule.factor(step) for own in (0.1, 0.025, 1e-5)]
        assert rates[0] / rates[1] == pytest.approx(4, rel=1e-12)
        schedule.optimizer.step()
        schedule.step()
        schedule.epoch_end(1.0)


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_state_opens_with_weights_only(kind, options, tmp_path):
    schedule = make(kind, **options)
    schedule.optimizer.step()
    schedule.step()
    torch.save(schedule.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == schedule.state_dict()


def test_a_changed_rate_counts_on_resume_and_no_step_is_replayed():
    first = make(Cosine, 0.3, total=10)
    curve(first, 6)
    second = make(Cosine, 0.6, total=20)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    expected = curve(make(Cosine, 0.6, total=20))
    assert curve(second, 14) == expected[6:]
    assert second.optimizer.param_groups[0]["initial_lr"] == 0.6


@pytest.mark.parametrize(("kind", "options"), EVERY[:-1])
def test_steps_beyond_the_end_stay_at_the_last_rate(kind, options):
    schedule = make(kind, **options)
    rates = curve(schedule, 30)
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates)
    if kind not in (Step, InverseSquareRoot):
        assert rates[12] == rates[-1]


@pytest.mark.parametrize(("kind", "options"), EVERY)
def test_a_run_of_one_step(kind, options):
    assert curve(make(kind, total=1, epoch=1, **options))[0] > 0


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (Constant, {"total": 0}, "there is no step to train for"),
        (Constant, {"epoch": 0}, "there is no step to train for"),
        (
            Constant,
            {"warmup_steps": 10},
            r"(?s)warmup_steps: the warm-up is as long.*fewer than the 10 steps.*fix: .*warmup_steps=0",
        ),
        (Constant, {"warmup_epochs": 3}, r"(?s)warmup_epochs: .*'3 epochs \(\d+ steps\)'"),
        (Constant, {"warmup_steps": -1}, "a warm-up cannot be negative"),
        (Constant, {"warmup_steps": 1, "warmup_epochs": 1}, "the warm-up is given twice"),
        (Linear, {"floor": 1.5}, r"floor: not a share"),
        (Linear, {"interval": "batch"}, r"interval: unknown interval"),
        (Cosine, {"cycles": 0}, r"cycles: there is at least one cycle"),
        (Cosine, {"cycle_scale": 0.0}, r"cycle_scale: not a share"),
        (Triangular, {"low": 0.0}, r"low: not a factor on the rate"),
        (Triangular, {"high": 0.1, "low": 0.5}, r"high: the rate falls before it rises"),
        (Step, {}, "when the rate falls is not clear"),
        (Step, {"milestones": [1], "every_epochs": 1}, "when the rate falls is not clear"),
        (Step, {"milestones": [2, 1]}, "milestones out of order"),
        (Step, {"every_epochs": -1}, r"every_epochs: not a number of epochs"),
        (Step, {"every_epochs": 1, "gamma": 0.0}, r"gamma: not a share"),
        (Plateau, {"mode": "up"}, r"mode: unknown mode"),
        (Plateau, {"mode": "min", "factor": 1.0}, r"factor: not a factor that lowers"),
        (Plateau, {"mode": "min", "patience": -1}, r"patience: cannot be negative"),
        (OneCycle, {"peak": 1.0}, r"peak: the peak lies inside the run"),
        (OneCycle, {"peak": 0.6, "three_phase": True}, r"(?s)peak: the peak lies inside the run.*<= 0\.5"),
        (OneCycle, {"start": 0.0}, r"start: not a share"),
        (OneCycle, {"anneal": "cos"}, r"(?s)anneal: no such shape.*cosine"),
        (Torch, {"scheduler": functools.partial(torch.optim.lr_scheduler.StepLR)}, "the scheduler cannot be made"),
        (
            Torch,
            {"scheduler": functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1.0, total_steps=9)},
            "OneCycleLR ends after 9 steps, and the run has 10",
        ),
        (Torch, {"scheduler": lambda opt: opt}, r"scheduler: not a scheduler"),
    ],
)
def test_bad_settings(kind, options, match):
    with pytest.raises(UserError, match=match):
        make(kind, **options)


# The curves


def test_linear():
    assert curve(make(Linear, 2.0, floor=0.5)) == pytest.approx([2 - i / 10 for i in range(10)])
    assert curve(make(Linear, warmup_steps=2)) == pytest.approx([1 / 3, 2 / 3, *(1 - i / 8 for i in range(8))])
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


@pytest.mark.parametrize(
    ("total", "peak", "divisors", "anneal", "three_phase"),
    [
        (80, 0.3, (25.0, 1e4), None, False),
        (100, 0.25, (10.0, 100.0), "linear", True),
        (20, 0.5, (25.0, 1e4), "cosine", True),
        (19, 0.3, (4.0, 2.0), "cosine", False),
        (3, 0.3, (25.0, 1e4), "linear", False),
        (2, 0.1, (25.0, 1e4), "cosine", False),
        (1, 0.3, (25.0, 1e4), "linear", True),
    ],
)
def test_one_cycle_is_torchs(total, peak, divisors, anneal, three_phase):
    first, last = divisors
    shape = {"peak": peak, "start": 1 / first, "floor": 1 / (first * last), "anneal": anneal} if anneal else {}
    schedule = make(OneCycle, 0.5, 0.1, total=total, three_phase=three_phase, **shape)
    opt = optimizer(0.5, 0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        opt,
        max_lr=[0.5, 0.1],
        total_steps=total,
        pct_start=peak,
        anneal_strategy="linear" if anneal == "linear" else "cos",
        div_factor=first,
        final_div_factor=last,
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
