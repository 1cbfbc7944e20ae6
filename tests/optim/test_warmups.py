"""Warm-ups of single groups."""

from __future__ import annotations

import functools
import pickle

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.optim import Constant, Cosine, Linear, OneCycle, Plateau, Step, Torch, parameter_groups
from lightkit.optim.annealing import Triangular

TOTAL = 20
OWN = [
    (Constant, {"warmup_steps": 3}),
    (Linear, {"floor": 0.1}),
    (Cosine, {"cycles": 2, "interval": "epoch"}),
    (Step, {"every_epochs": 1, "gamma": 0.5}),
    (Plateau, {"mode": "min", "patience": 0}),
    (OneCycle, {}),
    (Triangular, {"high": 0.5, "low": 0.05}),
]
WARMUPS = {"plain": None, "early": (4, 0), "late": (4, 7)}


def optimizer(warmups=WARMUPS, rate=0.3):
    groups = []
    for name, warmup in warmups.items():
        group = {"params": [nn.Parameter(torch.zeros(2))], "lr": rate, "name": name, "rules": [f"rule.{name}"]}
        if warmup:
            keys = {"warmup_steps": warmup[0], "first_step": warmup[1], "warmup_key": f"rule.{name}.warmup_steps"}
            group |= keys
        groups.append(group)
    return torch.optim.SGD(groups, lr=1.0)


def make(kind, options, **given):
    return kind(optimizer(**given), total_steps=TOTAL, steps_per_epoch=5, **options)


def move(schedule, steps):
    """Rates of all groups, step by step, with a validation after each."""
    rows = []
    for _ in range(steps):
        rows.append([group["lr"] for group in schedule.optimizer.param_groups])
        schedule.optimizer.step()
        schedule.step()
        schedule.epoch_end(1.0)
    return rows


@pytest.mark.parametrize(("kind", "options"), OWN)
def test_a_groups_warmup_is_a_factor_on_its_rate_and_touches_no_other(kind, options):
    plain = [row[0] for row in move(make(kind, options, warmups={"plain": None}), TOTAL)]
    rows = move(make(kind, options), TOTAL)
    assert [row[0] for row in rows] == plain
    for column, first in ((1, 0), (2, 7)):
        shares = [min(max(step - first + 1, 0) / 5, 1.0) for step in range(TOTAL)]
        assert [row[column] for row in rows] == [rate * share for rate, share in zip(plain, shares)]
        assert [row[column] for row in rows[first + 4 :]] == plain[first + 4 :]


@pytest.mark.parametrize(("kind", "options"), OWN)
@pytest.mark.parametrize("stop", [0, 3, 7, 9, 12])
def test_resuming_is_exact(kind, options, stop):
    straight, first = make(kind, options), make(kind, options)
    whole = move(straight, TOTAL)
    before = move(first, stop)
    saved = pickle.loads(pickle.dumps({"optimizer": first.optimizer.state_dict(), "schedule": first.state_dict()}))
    second = make(kind, options)
    second.optimizer.load_state_dict(saved["optimizer"])
    second.load_state_dict(saved["schedule"])
    assert before + move(second, TOTAL - stop) == whole
    assert second.state_dict() == straight.state_dict()


@pytest.mark.parametrize("kind", [Constant, Torch])
@pytest.mark.parametrize("old", [{"a": None}, {"a": (2, 1)}])
def test_a_resumed_group_keeps_the_settings_of_this_run(kind, old):
    options = {"scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3)} if kind is Torch else {}
    first = make(Constant, {}, warmups=old) if kind is Constant else make(kind, options, warmups={"a": None})
    for group in first.optimizer.param_groups:
        group["rules"] = ["others"]
    second = make(kind, options, warmups={"a": None if kind is Torch else (5, 2)})
    own = {key: second.optimizer.param_groups[0].get(key) for key in ("rules", "warmup_steps", "first_step")}
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    assert {key: second.optimizer.param_groups[0].get(key) for key in own} == own


def test_a_checkpoint_from_before_the_settings_gets_them():
    first = make(Constant, {}, warmups={"a": None})
    state = first.optimizer.state_dict()
    for group in state["param_groups"]:
        del group["rules"]
    second = make(Constant, {}, warmups={"a": (3, 0)})
    second.optimizer.load_state_dict(state)
    second.load_state_dict(first.state_dict())
    assert second.optimizer.param_groups[0]["rules"] == ["rule.a"]
    assert second.optimizer.param_groups[0]["warmup_steps"] == 3
    third = make(Constant, {}, warmups={"a": None})
    third.optimizer.load_state_dict(second.optimizer.state_dict())
    third.load_state_dict(second.state_dict())
    assert "warmup_steps" not in third.optimizer.param_groups[0]


def test_going_back_lowers_the_rates_inside_a_warmup_too():
    schedule = make(Cosine, {})
    rows = move(schedule, 12)
    for back in (2, 8):
        schedule.load_state_dict({"count": back, "rate_scale": 1.0})
        schedule.rescale(0.5)
        now = [group["lr"] for group in schedule.optimizer.param_groups]
        assert now == pytest.approx([0.5 * rate for rate in rows[back]], rel=1e-12)
        assert move(schedule, 2)[1] == pytest.approx([0.5 * rate for rate in rows[back + 1]], rel=1e-12)


def test_a_rate_that_is_a_tensor_is_filled():
    groups = optimizer({"a": (4, 2)}).param_groups
    groups[0]["lr"] = torch.tensor(1.0)
    tensor = groups[0]["lr"]
    opt = torch.optim.Adam(groups, capturable=False, foreach=False)
    schedule = Constant(opt, total_steps=TOTAL, steps_per_epoch=5)
    seen = []
    for _ in range(8):
        seen.append(opt.param_groups[0]["lr"].item())
        opt.step()
        schedule.step()
    assert opt.param_groups[0]["lr"] is tensor
    assert seen == pytest.approx([0, 0, 0.2, 0.4, 0.6, 0.8, 1, 1])


@pytest.mark.parametrize("warmups", [{"plain": None}, {"early": (3, 0)}])
def test_a_constant_rate_is_written_no_more_once_all_are_warm(warmups):
    schedule = make(Constant, {}, warmups=warmups)
    move(schedule, 4 if warmups.get("early") else 0)
    schedule.optimizer.param_groups[0]["lr"] = "untouched"
    schedule.step()
    assert schedule.optimizer.param_groups[0]["lr"] == "untouched"


@pytest.mark.parametrize(
    ("warmup", "expected"), [((20, 0), "at most 19 steps"), ((13, 7), "at most 12 steps"), ((1, 30), "at most 0 steps")]
)
def test_a_warmup_that_ends_after_the_run_is_refused(warmup, expected):
    with pytest.raises(UserError, match=rf"(?s)rule\.a\.warmup_steps: the warm-up of group a ends after.*{expected}"):
        make(Constant, {}, warmups={"a": warmup})
    make(Constant, {}, warmups={"a": (12, 7)})


@pytest.mark.parametrize(("rules", "key"), [
    ([{"match": "*", "warmup_steps": 3}], r"optim\.rules\[0\]\.warmup_steps"),
    ([{"names": ["weight"], "key": "finetune.rules[1]", "warmup_steps": 3}], r"finetune\.rules\[1\]\.warmup_steps"),
])  # fmt: skip
def test_pytorchs_schedulers_refuse_it(rules, key):
    opt = torch.optim.SGD(parameter_groups(nn.Linear(2, 2), lr=0.1, rules=rules))
    inner = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3)
    with pytest.raises(UserError, match=f"(?s){key}: PyTorch's schedulers have no warm-up for single groups.*fix:"):
        Torch(opt, total_steps=TOTAL, steps_per_epoch=5, scheduler=inner)
