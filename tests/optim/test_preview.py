"""Rates before they are there equal those of the live optimizer."""

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

from lightkit.config import instantiate
from lightkit.optim import Constant, Cosine, Linear, Plateau, Schedule, Torch, rates
from lightkit.optim.wrapped import alters, due, rate_scale

OPTIONS = Path(__file__).parents[2] / "conf" / "scheduler"
TOTAL, EPOCH = 24, 6
UNKNOWN = {"plateau"}
CHANGES = {"step": [{"every_epochs": 1}], "cosine": [{}, {"interval": "epoch", "cycles": 2, "warmup_steps": 4}]}


def optimizer(kind=torch.optim.SGD, *, warm=True, tensors=False, **options):
    groups = [
        {"params": [nn.Parameter(torch.zeros(2)) for _ in range(3)], "lr": rate, "name": name}
        for name, rate in (("body", 0.01), ("head", 0.3), ("late", 0.07))
    ]
    if tensors:
        for group in groups:
            group["lr"] = torch.tensor(group["lr"])
    if warm:
        groups[2] |= {"warmup_steps": 5, "first_step": 9, "warmup_key": "rule.warmup_steps"}
    return kind(groups, **options)


def live(scheduler, steps, start=0):
    """What the optimizer shows at each step, as the training loop moves on."""
    rows = []
    for _ in range(start, steps):
        rows.append([float(group["lr"]) for group in scheduler.optimizer.param_groups])
        scheduler.optimizer.step()
        scheduler.step()
        if (scheduler.count % EPOCH) == 0:
            scheduler.epoch_end(1.0)
    return rows


def shipped():
    for path in sorted(OPTIONS.glob("*.yaml")):
        if path.stem in ("_base", "custom"):
            continue
        for changes in CHANGES.get(path.stem, [{}]):
            yield pytest.param(path.stem, changes, id=f"{path.stem}{len(changes) or ''}")


def build(name, changes, opt):
    options = OmegaConf.merge(OmegaConf.load(OPTIONS / f"{name}.yaml"), changes)
    if options.pop("defaults", None):
        options = OmegaConf.merge(OmegaConf.load(OPTIONS / "_base.yaml"), options)
    if "mode" in options:
        options["mode"] = "min"
    return instantiate(options, key="scheduler", optimizer=opt, total_steps=TOTAL, steps_per_epoch=EPOCH)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(("name", "changes"), list(shipped()))
def test_every_shipped_scheduler_shows_what_comes(name, changes, tensors):
    own = name != "torch"
    made = build(name, changes, optimizer(warm=own, tensors=tensors, foreach=False))
    found = rates(made, range(TOTAL))
    if name in UNKNOWN:
        assert found is None
        return
    assert found == live(made, TOTAL)
    assert found[0] != found[-1] or name == "constant"


def chained(opt):
    return lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(opt, total_iters=5), lr_scheduler.StepLR(opt, 4)])


def sequential(opt):
    first, second = lr_scheduler.ConstantLR(opt, 0.1, total_iters=6), lr_scheduler.ExponentialLR(opt, 0.9)
    return lr_scheduler.SequentialLR(opt, [first, second], milestones=[6])


PYTORCHS = {
    "lambda": functools.partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step)),
    "lambdas": functools.partial(lr_scheduler.LambdaLR, lr_lambda=[lambda s: 0.9**s, lambda s: 1.0, lambda s: 2.0 * s]),
    "multiplicative": functools.partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda step: 0.9),
    "multistep": functools.partial(lr_scheduler.MultiStepLR, milestones=[3, 9]),
    "exponential": functools.partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "polynomial": functools.partial(lr_scheduler.PolynomialLR, total_iters=20),
    "cosine": functools.partial(lr_scheduler.CosineAnnealingLR, T_max=7, eta_min=1e-3),
    "restarts": functools.partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=5, T_mult=2),
    "cyclic": functools.partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=4),
    "one_cycle": functools.partial(lr_scheduler.OneCycleLR, max_lr=[0.1, 0.2, 0.3]),
    "chained": chained,
    "sequential": sequential,
}


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("stop", [0, 7])
@pytest.mark.parametrize("name", PYTORCHS)
def test_pytorchs_schedulers_are_gone_through_by_a_twin(name, stop, interval):
    opt = optimizer(warm=False, lr=1.0, momentum=0.9)
    made = Torch(opt, total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=PYTORCHS[name], interval=interval)
    before = live(made, stop)
    groups, state = copy.deepcopy(opt.state_dict()), copy.deepcopy(made.state_dict())
    found = rates(made, range(TOTAL))
    assert opt.state_dict() == groups
    assert made.state_dict() == state
    assert found == before + live(made, TOTAL, stop)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_one_cycle_of_pytorchs_moves_betas_of_its_own(kind):
    opt = optimizer(kind, warm=False, lr=1.0)
    made = Torch(opt, total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=PYTORCHS["one_cycle"])
    live(made, 5)
    betas = [group["betas"] for group in opt.param_groups]
    found = rates(made, range(5, TOTAL))
    assert [group["betas"] for group in opt.param_groups] == betas
    assert found == live(made, TOTAL, 5)


def test_steps_come_in_any_order():
    for made in (
        Cosine(optimizer(), total_steps=TOTAL, steps_per_epoch=EPOCH),
        Torch(optimizer(warm=False), total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=PYTORCHS["exponential"]),
    ):
        live(made, 4)
        every = rates(made, range(TOTAL))
        assert rates(made, [9, 2, 9, 0]) == [every[9], every[2], every[9], every[0]]
        assert rates(made, []) == []


@pytest.mark.parametrize("options", [{"scheduler": PYTORCHS["exponential"]}, None])
def test_lowered_rates_are_seen(options):
    kind = Linear if options is None else Torch
    made = kind(optimizer(warm=False), total_steps=TOTAL, steps_per_epoch=EPOCH, **(options or {}))
    made.rescale(0.5)
    assert rates(made, [0])[0] == pytest.approx([0.005, 0.15, 0.035])
    live(made, 4)
    made.rescale(0.25)
    assert rates(made, range(4, TOTAL)) == live(made, TOTAL, 4)


def test_a_resumed_schedule_is_seen_from_where_it_stands():
    def make():
        opt = optimizer(warm=False, momentum=0.9)
        return Torch(opt, total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=PYTORCHS["one_cycle"])

    first, second = make(), make()
    live(first, 10)
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert rates(second, range(10, TOTAL)) == live(first, TOTAL, 10)


def test_nothing_listens_to_the_twin():
    made = Torch(optimizer(warm=False), total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=PYTORCHS["exponential"])
    calls = []
    handle = register_optimizer_step_pre_hook(lambda *args: calls.append(args))
    try:
        rates(made, [TOTAL])
    finally:
        handle.remove()
    assert calls == []


class Stepping(Schedule):
    def step(self):
        super().step()


class Listening(Schedule):
    def epoch_end(self, value):
        self.seen = value


class Curve(Schedule):
    def decay(self, step):
        return 1 / (1 + step)


def test_what_depends_on_values_of_the_run_is_unknown():
    sizes = {"total_steps": TOTAL, "steps_per_epoch": EPOCH}
    assert rates(Plateau(optimizer(), mode="max", **sizes), [0]) is None
    assert rates(Torch(optimizer(warm=False), scheduler=lr_scheduler.ReduceLROnPlateau, **sizes), [0]) is None
    assert rates(Stepping(optimizer(), **sizes), [0]) is None
    assert rates(Listening(optimizer(), **sizes), [0]) is None
    for kind in (Curve, Constant):
        made = kind(optimizer(), **sizes)
        assert rates(made, range(TOTAL)) == live(made, TOTAL)


def check_due(made, steps=TOTAL):
    """What a schedule says it has set is what the groups have, as the training loop moves on."""
    for step in range(steps):
        assert due(made) == [float(group["lr"]) for group in made.optimizer.param_groups]
        if step in (3, 9):
            made.rescale(made.rate_scale * 0.5)
            assert due(made) == [float(group["lr"]) for group in made.optimizer.param_groups]
        live(made, 1)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(("name", "changes"), [p for p in shipped() if p.values[0] != "torch"])
def test_every_shipped_scheduler_knows_what_it_has_set(name, changes, tensors):
    made = build(name, changes, optimizer(tensors=tensors, foreach=False))
    check_due(made)
    assert (alters(made), rate_scale(made)) == (frozenset(), 0.25)
    made.optimizer.param_groups[1]["lr"] += 1.0
    assert due(made) != [float(group["lr"]) for group in made.optimizer.param_groups]


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("name", [*PYTORCHS, "plateau"])
def test_pytorchs_schedulers_know_what_they_have_set(name, interval):
    source = PYTORCHS.get(name, functools.partial(lr_scheduler.ReduceLROnPlateau, patience=1))
    opt = optimizer(warm=False, lr=1.0, momentum=0.9)
    made = Torch(opt, total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=source, interval=interval)
    assert rate_scale(made) == 1.0
    check_due(made, 18)
    assert rate_scale(made) is None
    assert alters(made) == {"momentum", "betas"}
    again = Torch(copy.deepcopy(opt), total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=source, interval=interval)
    again.optimizer.load_state_dict(copy.deepcopy(opt.state_dict()))
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    assert due(again) == due(made)
    opt.param_groups[1]["lr"] *= 2
    assert due(made) != [group["lr"] for group in opt.param_groups]


def test_of_schedules_of_ones_own_nothing_is_claimed():
    class Writes(Constant):
        def step(self):
            self.count += 1
            self.optimizer.param_groups[0].update(lr=1 / self.count, weight_decay=self.count)

    class Restless(lr_scheduler.LRScheduler):
        def step(self, epoch=None):
            self.optimizer.param_groups[0]["lr"] = 7.0
            self._last_lr = [1.0, 1.0, 1.0]

    for made in (
        Writes(optimizer(), total_steps=TOTAL, steps_per_epoch=EPOCH),
        Torch(optimizer(warm=False), total_steps=TOTAL, steps_per_epoch=EPOCH, scheduler=Restless),
    ):
        made.step()
        assert (due(made), alters(made)) == (None, None)
