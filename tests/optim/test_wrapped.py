"""PyTorch's schedulers behind lightkit's interface, and rates before they are there: those of the live optimizer."""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lightkit.common.errors import UserError
from lightkit.config import instantiate
from lightkit.optim import Constant, Cosine, Linear, Plateau, Schedule, Torch, rates
from lightkit.optim.wrapped import alters, due, rate_scale

OPTIONS = Path(__file__).parents[2] / "conf" / "scheduler"
TOTAL, EPOCH = 24, 6
SIZES = {"total_steps": TOTAL, "steps_per_epoch": EPOCH}
CHANGES = {"step": [{"every_epochs": 1}], "cosine": [{}, {"interval": "epoch", "cycles": 2, "warmup_steps": 4}]}


def optimizer(kind=torch.optim.SGD, *, warm=False, tensors=False, **options):
    groups = [
        {"params": [nn.Parameter(torch.zeros(2)) for _ in range(3)], "lr": rate, "name": name}
        for name, rate in (("body", 0.01), ("head", 0.3), ("late", 0.07))
    ]
    for group in groups if tensors else ():
        group["lr"] = torch.tensor(group["lr"])
    if warm:
        groups[2] |= {"warmup_steps": 5, "first_step": 9, "warmup_key": "rule.warmup_steps"}
    return kind(groups, **options)


def now(made):
    return [float(group["lr"]) for group in made.optimizer.param_groups]


def live(made, steps, start=0):
    """What the optimizer shows at each step, as the training loop moves on."""
    rows = []
    for _ in range(start, steps):
        rows.append(now(made))
        made.optimizer.step()
        made.step()
        if (made.count % EPOCH) == 0:
            made.epoch_end(1.0)
    return rows


def check_due(made, steps=TOTAL):
    """What a schedule says it has set is what the groups have, as the training loop moves on."""
    for step in range(steps):
        assert due(made) == now(made)
        if step in (3, 9):
            made.rescale(made.rate_scale * 0.5)
            assert due(made) == now(made)
        live(made, 1)


def shipped():
    for path in sorted(OPTIONS.glob("*.yaml")):
        if path.stem not in ("_base", "custom"):
            for number, changes in enumerate(CHANGES.get(path.stem, [{}])):
                yield pytest.param(path.stem, changes, id=f"{path.stem}{number}")


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(("name", "changes"), list(shipped()))
def test_every_shipped_scheduler_shows_what_comes_and_what_it_has_set(name, changes, tensors):
    def build():
        options = OmegaConf.merge(OmegaConf.load(OPTIONS / f"{name}.yaml"), changes)
        if options.pop("defaults", None):
            options = OmegaConf.merge(OmegaConf.load(OPTIONS / "_base.yaml"), options)
        if "mode" in options:
            options["mode"] = "min"
        own = optimizer(warm=name != "torch", tensors=tensors, foreach=False)
        return instantiate(options, key="scheduler", optimizer=own, **SIZES)

    made = build()
    shown = rates(made, range(TOTAL))
    assert shown is None if name == "plateau" else shown == live(made, TOTAL)
    if name not in ("plateau", "constant"):
        assert shown[0] != shown[-1]
    if name != "torch":
        made = build()
        check_due(made)
        assert (alters(made), rate_scale(made)) == (frozenset(), 0.25)
        made.optimizer.param_groups[1]["lr"] += 1.0
        assert due(made) != now(made)


def chained(opt):
    return lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(opt, total_iters=5), lr_scheduler.StepLR(opt, 4)])


def in_turn(last):
    """Schedulers one after the other; what is inside some of them is not of plain types."""
    return lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, total_iters=3), last(opt)], milestones=[3]
    )


CYCLIC = functools.partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=4)
PYTORCHS = {
    "lambda": functools.partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "lambdas": functools.partial(lr_scheduler.LambdaLR, lr_lambda=[lambda s: 0.9**s, lambda s: 1.0, lambda s: 2.0 * s]),
    "multiplicative": functools.partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda step: 0.9),
    "multistep": functools.partial(lr_scheduler.MultiStepLR, milestones=[3, 9]),
    "exponential": functools.partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "restarts": functools.partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=5, T_mult=2),
    "cyclic": CYCLIC,
    "one_cycle": functools.partial(lr_scheduler.OneCycleLR, max_lr=[0.1, 0.2, 0.3]),
    "chained": chained,
    "cyclic inside": in_turn(CYCLIC),
    "milestones inside": in_turn(functools.partial(lr_scheduler.MultiStepLR, milestones=[1, 4])),
    "function inside": in_turn(functools.partial(lr_scheduler.LambdaLR, lr_lambda=lambda n: 1 / (1 + n))),
}


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("name", PYTORCHS)
def test_pytorchs_schedulers_are_gone_through_by_a_twin_and_go_on(name, interval):
    def make():
        opt = optimizer(lr=1.0, momentum=0.9)
        return Torch(opt, **SIZES, scheduler=PYTORCHS[name], interval=interval)

    first, second = make(), make()
    before = live(first, 7)
    groups, state = copy.deepcopy(first.optimizer.state_dict()), copy.deepcopy(first.state_dict())
    shown = rates(first, range(TOTAL))
    assert first.optimizer.state_dict() == groups
    assert first.state_dict() == state
    second.load_state_dict(state)  # twice, with the optimizer in between, as a checkpoint is applied
    second.optimizer.load_state_dict(groups)
    second.load_state_dict(state)
    assert due(second) == due(first)
    assert rates(second, range(7, TOTAL)) == shown[7:]
    assert shown == before + live(first, TOTAL, 7) == before + live(second, TOTAL, 7) == live(make(), TOTAL)


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("name", [*PYTORCHS, "plateau"])
def test_pytorchs_schedulers_know_what_they_have_set(name, interval):
    source = PYTORCHS.get(name, functools.partial(lr_scheduler.ReduceLROnPlateau, patience=1))
    made = Torch(optimizer(lr=1.0, momentum=0.9), **SIZES, scheduler=source, interval=interval)
    assert rate_scale(made) == 1.0
    check_due(made, 18)
    assert rate_scale(made) is None
    assert alters(made) == {"momentum", "betas"}
    made.optimizer.param_groups[1]["lr"] *= 2
    assert due(made) != now(made)


@pytest.mark.parametrize(
    ("kind", "interval", "options"),
    [
        (lr_scheduler.MultiStepLR, "epoch", {"milestones": [1]}),
        (lr_scheduler.CyclicLR, "step", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "cycle_momentum": False}),
        (lr_scheduler.OneCycleLR, "step", {"max_lr": 1.0}),
    ],
)
def test_torch_schedulers_follow_torch(kind, interval, options):
    ours = Torch(optimizer(), **SIZES, scheduler=functools.partial(kind, **options), interval=interval)
    opt = optimizer()
    theirs = kind(opt, **options, **({"total_steps": TOTAL} if kind is lr_scheduler.OneCycleLR else {}))
    for step, row in enumerate(live(ours, TOTAL - 1)):
        assert row == [group["lr"] for group in opt.param_groups]
        opt.step()
        if interval == "step" or (step + 1) % EPOCH == 0:
            theirs.step()


def test_one_cycle_of_pytorchs_moves_betas_of_its_own():
    made = Torch(optimizer(torch.optim.Adam, lr=1.0), **SIZES, scheduler=PYTORCHS["one_cycle"])
    live(made, 5)
    betas = [group["betas"] for group in made.optimizer.param_groups]
    shown = rates(made, range(5, TOTAL))
    assert [group["betas"] for group in made.optimizer.param_groups] == betas
    assert shown == live(made, TOTAL, 5)


def test_a_scheduler_with_a_length_of_its_own_refuses_a_longer_run():
    def make(total):
        return Torch(optimizer(), total_steps=total, steps_per_epoch=5, scheduler=PYTORCHS["one_cycle"])

    state = make(10).state_dict()
    make(8).load_state_dict(state)
    with pytest.raises(UserError, match="OneCycleLR ends after 10 steps, and the run has 15"):
        make(15).load_state_dict(state)


def test_torchs_plateau_gets_the_value():
    made = Torch(optimizer(), **SIZES, scheduler=functools.partial(lr_scheduler.ReduceLROnPlateau, patience=0))
    assert made.monitored
    made.epoch_end(1.0)
    made.step()
    made.epoch_end(1.0)
    assert now(made) == pytest.approx([0.001, 0.03, 0.007])
    with pytest.raises(UserError, match="ReduceLROnPlateau needs a validated value"):
        made.epoch_end(None)


def test_schedulers_that_are_made_of_others_may_be_described_in_parts():
    last = functools.partial(lr_scheduler.CosineAnnealingLR, T_max=6)
    parts = [functools.partial(lr_scheduler.LinearLR, total_iters=3), last]
    described = functools.partial(lr_scheduler.SequentialLR, schedulers=parts, milestones=[3])
    first, second = (live(Torch(optimizer(), **SIZES, scheduler=each), 9) for each in (described, in_turn(last)))
    assert first == second


def test_steps_come_in_any_order():
    for made in (Cosine(optimizer(), **SIZES), Torch(optimizer(), **SIZES, scheduler=PYTORCHS["exponential"])):
        live(made, 4)
        every = rates(made, range(TOTAL))
        assert rates(made, [9, 2, 9, 0]) == [every[9], every[2], every[9], every[0]]
        assert rates(made, []) == []


def test_lowered_rates_are_seen_and_nothing_listens_to_the_twin():
    calls = []
    handle = register_optimizer_step_pre_hook(lambda *args: calls.append(args))
    try:
        for made in (Linear(optimizer(), **SIZES), Torch(optimizer(), **SIZES, scheduler=PYTORCHS["exponential"])):
            made.rescale(0.5)
            assert rates(made, [0, TOTAL])[0] == pytest.approx([0.005, 0.15, 0.035])
            assert calls == []
            live(made, 4)
            made.rescale(0.25)
            assert rates(made, range(4, TOTAL)) == live(made, TOTAL, 4)
            calls.clear()
    finally:
        handle.remove()


class Stepping(Schedule):
    def step(self):
        super().step()


class Listening(Schedule):
    def epoch_end(self, value):
        self.seen = value


class Curve(Schedule):
    def decay(self, step):
        return 1 / (1 + step)


class Writes(Constant):
    def step(self):
        self.count += 1
        self.optimizer.param_groups[0].update(lr=1 / self.count, weight_decay=self.count)


class Restless(lr_scheduler.LRScheduler):
    def step(self, epoch=None):
        self.optimizer.param_groups[0]["lr"] = 7.0
        self._last_lr = [1.0, 1.0, 1.0]


def test_what_depends_on_values_of_the_run_or_on_code_of_ones_own_is_unknown():
    assert rates(Plateau(optimizer(), mode="max", **SIZES), [0]) is None
    assert rates(Torch(optimizer(), scheduler=lr_scheduler.ReduceLROnPlateau, **SIZES), [0]) is None
    for kind in (Stepping, Listening):
        assert rates(kind(optimizer(), **SIZES), [0]) is None
    made = Curve(optimizer(), **SIZES)
    assert rates(made, range(TOTAL)) == live(made, TOTAL)
    for made in (Writes(optimizer(), **SIZES), Torch(optimizer(), **SIZES, scheduler=Restless)):
        made.step()
        assert (due(made), alters(made)) == (None, None)
