"""PyTorch's own schedulers behind lightkit's interface."""

from __future__ import annotations

import functools

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.optim import Torch
from tests.optim.test_schedulers import curve, make, optimizer


def in_turn(last):
    """Schedulers one after the other; what is inside some of them is not of plain types."""
    lr_scheduler = torch.optim.lr_scheduler
    return lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, total_iters=3), last(opt)], milestones=[3]
    )


def at_once(opt):
    lr_scheduler = torch.optim.lr_scheduler
    parts = [lr_scheduler.LinearLR(opt, total_iters=5), lr_scheduler.MultiStepLR(opt, [2, 6])]
    return lr_scheduler.ChainedScheduler(parts)


NESTED = {
    "exponential": functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5),
    "cyclic": functools.partial(
        torch.optim.lr_scheduler.CyclicLR, base_lr=0.1, max_lr=1.0, step_size_up=3, cycle_momentum=False
    ),
    "cyclic inside": in_turn(lambda opt: NESTED["cyclic"](opt)),
    "milestones inside": in_turn(functools.partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[1, 4])),
    "function inside": in_turn(functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda n: 1 / (1 + n))),
    "chained": at_once,
}


@pytest.mark.parametrize("name", NESTED)
def test_schedulers_of_torch_with_others_inside_go_on(name):
    whole = curve(make(Torch, 0.3, scheduler=NESTED[name]), 10)
    first, second = (make(Torch, 0.3, scheduler=NESTED[name]) for _ in range(2))
    before = curve(first, 5)
    state = first.state_dict()
    second.load_state_dict(state)  # twice, with the optimizer in between, as a checkpoint is applied
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(state)
    assert before + curve(second, 5) == whole


def test_a_scheduler_with_a_length_of_its_own_refuses_a_longer_run():
    kind = functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=1.0)
    state = make(Torch, scheduler=kind).state_dict()
    make(Torch, scheduler=kind, total=8).load_state_dict(state)
    with pytest.raises(UserError, match="OneCycleLR ends after 10 steps, and the run has 15"):
        make(Torch, scheduler=kind, total=15).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "interval"),
    [
        ("MultiStepLR", "epoch"),
        ("OneCycleLR", "step"),
        ("CosineAnnealingWarmRestarts", "step"),
        ("CyclicLR", "step"),
        ("CyclicLR", "epoch"),
    ],
)
def test_torch_schedulers_follow_torch(name, interval):
    kind = getattr(torch.optim.lr_scheduler, name)
    options = {
        "MultiStepLR": {"milestones": [1]},
        "OneCycleLR": {"max_lr": 1.0},
        "CosineAnnealingWarmRestarts": {"T_0": 4},
        "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "cycle_momentum": False},
    }
    given = options[name]
    ours = make(Torch, scheduler=functools.partial(kind, **given), interval=interval)
    opt = optimizer()
    theirs = kind(opt, **given, **({"total_steps": 10} if name == "OneCycleLR" else {}))
    for step, rate in enumerate(curve(ours, 9)):
        assert rate == opt.param_groups[0]["lr"]
        opt.step()
        if interval == "step" or (step + 1) % 5 == 0:
            theirs.step()


def test_torchs_plateau_gets_the_value():
    schedule = make(Torch, scheduler=functools.partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0))
    assert schedule.monitored
    schedule.epoch_end(1.0)
    schedule.step()
    schedule.epoch_end(1.0)
    assert schedule.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    with pytest.raises(UserError, match="ReduceLROnPlateau needs a validated value"):
        schedule.epoch_end(None)


def test_schedulers_that_are_made_of_others_may_be_described_in_parts():
    lr_scheduler = torch.optim.lr_scheduler
    parts = [
        functools.partial(lr_scheduler.LinearLR, total_iters=3),
        functools.partial(lr_scheduler.CosineAnnealingLR, T_max=6),
    ]
    described = functools.partial(lr_scheduler.SequentialLR, schedulers=parts, milestones=[3])
    whole = in_turn(functools.partial(lr_scheduler.CosineAnnealingLR, T_max=6))
    assert curve(make(Torch, 0.3, scheduler=described), 9) == curve(make(Torch, 0.3, scheduler=whole), 9)
