"""Steps of a run outside of it, with rising rates and as short trainings; nothing of them is kept."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightkit.finders.steps as rate_steps
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.finders.lr import LossAtRate
from lightkit.finders.steps import RateSteps, TrialSteps
from lightkit.runner import Runner
from tests.runner.test_run import QUICK, weights

WINE = ["data=wine", "model.hidden=[8]", "device=cpu", "metrics.figures=[]", "logger=quiet", "scheduler=constant"]


def made(*overrides: str) -> RateSteps:
    return RateSteps(compose([*QUICK, *overrides]).cfg)


def rising(*overrides: str, low: float = 1e-4, high: float = 1.0, steps: int = 12) -> list[LossAtRate]:
    return [*made(*overrides).rising(low, high, steps)]


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rates of all groups, one step after the other."""
    seen: list[float] = []

    def give(group: dict[str, Any], rate: float) -> None:
        group["lr"] = rate
        seen.append(rate)

    monkeypatch.setattr(rate_steps, "set_rate", give)
    return seen


def test_the_rate_rises_evenly_on_a_logarithmic_scale() -> None:
    points = rising()
    assert len(points) == 12
    steps = [later.lr / before.lr for before, later in pairwise(points)]
    assert steps == pytest.approx([steps[0]] * 11)
    assert (points[0].lr, points[-1].lr) == pytest.approx((1e-4, 1.0))
    assert points[-1].loss < points[0].loss


def test_it_ends_where_the_loss_diverges() -> None:
    assert len(rising("optim=sgd", high=1e9, steps=60)) < 60


def test_groups_keep_their_ratio_and_those_with_rates_of_their_own_keep_them(rates: list[float]) -> None:
    rules = "optim.rules=[{match: head.bias, lr: 0.5}, {match: head.weight, lr_scale: 10}]"
    rising(rules, "scheduler.warmup_epochs=1")
    each = [rates[start : start + len(rates) // 12] for start in range(0, len(rates), len(rates) // 12)]
    assert len(each) == 12
    for groups, lr in zip(each, np.geomspace(1e-4, 1.0, 12)):
        assert 0.5 in groups, "one that was given for itself stays"
        assert pytest.approx(lr) in groups
        assert pytest.approx(10 * lr) in groups


def test_no_group_follows_the_rate_of_the_optimizer() -> None:
    with pytest.raises(UserError, match=r"optim\.lr: every group of parameters has a rate of its own"):
        made("optim.rules=[{match: '*', lr: 0.1}]")


def test_what_is_frozen_at_first_does_not_move() -> None:
    trial = made("finetune=head")
    before = {name: value.clone() for name, value in trial.learner.model.named_parameters()}
    assert [*trial.rising(1e-4, 1.0, 12)]
    moved = {name for name, value in trial.learner.model.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith("head.")}


@pytest.mark.parametrize("optim", ["adamw", pytest.param("adagrad", marks=pytest.mark.thorough)])
def test_every_short_training_begins_where_the_run_does(optim: str) -> None:
    trial, fresh = made(f"optim={optim}", "model.norm=batch"), made(f"optim={optim}", "model.norm=batch")
    first = fresh.train(0.01, 8)
    assert [*trial.rising(1e-4, 1.0, 12)]
    trial.train(0.3, 8)
    assert trial.train(0.01, 8) == first
    assert len(first.losses) == 2, "a quarter of the steps"


def test_a_short_training_follows_the_schedule_of_the_run(rates: list[float]) -> None:
    trial = made("scheduler=linear", "scheduler.warmup_epochs=1", "trainer.epochs=5")
    trial.train(0.01, 10)
    groups = len(trial.learner.optimizer.param_groups)
    factors = [rate / 0.01 for rate in rates[::groups]]
    assert factors[0] < factors[1] < factors[2]
    assert max(factors) == pytest.approx(1.0, abs=0.15)
    assert factors[3:] == sorted(factors[3:], reverse=True)
    assert factors[-1] < 0.15


def test_a_short_training_that_diverges() -> None:
    found = made("optim=sgd", "loss=mse", "data=diabetes", "metrics=regression").train(1e9, 10)
    assert (found.losses, found.loss) == ((), float("inf"))


@pytest.mark.parametrize(
    "more",
    [
        ["model.dropout=0.3", "trainer.accumulate=3"],
        pytest.param(["data.mixup.alpha=0.4", "trainer.clip_norm=0.1", "finetune=head"], marks=pytest.mark.thorough),
    ],
)
def test_they_are_those_of_the_run(more: list[str], tmp_path: Path) -> None:
    Runner(compose([*WINE, "trainer.epochs=2", "trainer.test=none", *more]).cfg, tmp_path / "run").run()
    trial = TrialSteps(compose([*WINE, "trainer.epochs=2", *more]).cfg)
    total = trial.learner.timetable.total_steps
    made = [*islice(trial.run(trial.learner.data.train), total)]
    trial.close()
    assert len(made) == total
    assert all(torch.isfinite(step.loss) for step in made)
    ours = trial.learner.model.state_dict()
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, ours[name]), name


def test_samples_a_second() -> None:
    trial = TrialSteps(compose([*WINE, "trainer.accumulate=2"]).cfg)
    rows = trial.learner.data.train.num_samples
    assert trial.compute_speed(8, seconds=0.01) > 0
    assert trial.compute_speed(2 * rows, seconds=0.01) > 0, "rows are repeated"
