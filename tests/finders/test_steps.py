"""Steps of a run outside of it: they are the same, and nothing of them is kept."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.config import compose
from lightkit.finders.steps import TrialSteps
from lightkit.runner import Runner
from tests.runner.test_run import weights

WINE = ["data=wine", "model.hidden=[8]", "device=cpu", "metrics.figures=[]", "logger=quiet", "scheduler=constant"]


def composed(*overrides: str) -> Any:
    return compose([*WINE, *overrides]).cfg


@pytest.mark.parametrize(
    "more",
    [
        ["model.dropout=0.3", "trainer.accumulate=3"],
        pytest.param(["data.mixup.alpha=0.4", "trainer.clip_norm=0.1"], marks=pytest.mark.thorough),
        pytest.param(["finetune=head"], marks=pytest.mark.thorough),
    ],
)
def test_they_are_those_of_the_run(more: list[str], tmp_path: Path) -> None:
    Runner(composed("trainer.epochs=2", "trainer.test=none", *more), tmp_path / "run").run()
    trial = TrialSteps(composed("trainer.epochs=2", *more))
    total = trial.learner.timetable.total_steps
    made = [*islice(trial.run(trial.learner.data.train), total)]
    trial.close()
    assert len(made) == total
    assert all(torch.isfinite(step.loss) for step in made)
    ours = trial.learner.model.state_dict()
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, ours[name]), name


def test_a_loss_that_is_not_finite_is_no_error() -> None:
    trial = TrialSteps(composed())
    for group in trial.learner.optimizer.param_groups:
        group["lr"] = 1e30
    losses = [float(step.loss) for step in islice(trial.run(trial.learner.data.train), 5)]
    assert any(loss != loss or loss == float("inf") for loss in losses)


@pytest.mark.parametrize(
    "more", [["trainer.accumulate=2"], pytest.param(["finetune=head"], marks=pytest.mark.thorough)]
)
def test_samples_a_second(more: list[str]) -> None:
    trial = TrialSteps(composed(*more))
    rows = trial.learner.data.train.num_samples
    assert trial.compute_speed(8, seconds=0.01) > 0
    assert trial.compute_speed(2 * rows, seconds=0.01) > 0, "rows are repeated"
