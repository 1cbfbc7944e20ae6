from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from lightkit.assembly import Learner
from lightkit.config import compose
from lightkit.doctor.checks import ExaminedRun, examined
from lightkit.doctor.training.probing import own_rates
from lightkit.doctor.training.trials import Try, attempt, lowest_loss


def with_run(*overrides: str) -> ExaminedRun:
    with examined(compose([*overrides]).cfg, 60) as run:
        return run


def with_loss(criterion: object) -> Learner:
    return cast("Learner", SimpleNamespace(criterion=criterion))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_lowest_loss_of_smoothed_labels_is_their_entropy(smoothing: float) -> None:
    share = smoothing / 3
    each = [1 - smoothing + share, share, share]
    entropy = -sum(value * math.log(value) for value in each if value)
    criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)

    found = lowest_loss(with_loss(criterion), [(torch.zeros(8, 3), torch.arange(8) % 3)])

    assert found == pytest.approx(entropy, abs=2e-3)


def test_a_loss_without_a_lowest_value_ends_at_none() -> None:
    def unbounded(preds: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (preds * target).mean()

    calls = [(torch.zeros(8, 3), torch.arange(8) % 3)]
    assert lowest_loss(with_loss(nn.NLLLoss()), calls) == 0
    assert lowest_loss(with_loss(unbounded), [(torch.zeros(4), torch.ones(4))]) == 0


def test_the_rate_is_that_after_the_warm_up(project: Path) -> None:
    learner = with_run("data=wine", "optim.lr=0.02", "scheduler.warmup_epochs=5").learner()
    assert {*own_rates(learner)} == {0.02}
    assert learner.optimizer.param_groups[0]["lr"] < 0.01


def test_a_network_learns_a_few_rows_by_heart_in_spite_of_dropout_and_smoothing(project: Path) -> None:
    learner = with_run("data=wine", "model.dropout=0.5", "loss.label_smoothing=0.1", "optim.lr=0.01").learner()
    tried = attempt(learner, 8, seconds=60)

    assert tried.progress > 0.9
    assert tried.losses[-1] > tried.floor > 0.1


@pytest.mark.parametrize(
    ("losses", "progress", "diverged"),
    [([2.0, 1.0], 0.5, False), ([2.0, 0.0], 1.0, False), ([2.0, 4.0], 0.0, True), ([2.0, 1.0, math.nan], 0.5, True)],
)
def test_how_far_a_try_came(losses: list[float], progress: float, diverged: bool) -> None:
    tried = Try(losses, floor=0.0, spread=1.0)
    assert tried.progress == pytest.approx(progress)
    assert tried.diverged is diverged
