"""A few samples learnt by heart: what can does, and what cannot says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.trainer.tasks import StepOutput, Supervised

WINE = ["data=wine", "trainer=overfit", "model.hidden=[32]", "device=cpu", "logger=quiet", "optim.lr=0.01"]


def run(folder: Path, *overrides: str) -> Any:
    return Runner(compose([*WINE, *overrides]).cfg, folder / "run").run()


def failed(folder: Path, *overrides: str) -> UserError:
    with pytest.raises(UserError, match="the model does not learn the samples by heart") as caught:
        run(folder, "trainer.overfit.steps=100", *overrides)
    assert caught.value.exit_code == 1
    assert json.loads((folder / "run/result.json").read_text())["status"] == "failed"
    return caught.value


class Cut(nn.Module):
    """Lets no gradient through to its first layer."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(in_features, 8), nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            inner = self.first(x).sign()
        return self.last(0 * inner)


class Softmaxed(nn.Module):
    """Gives probabilities."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(in_features, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the shares of the classes."""
        return self.head(x).softmax(1)


class Contradicting:
    """Two samples of each input, of different classes."""

    draws = False

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3), index % 2


class Blind(Supervised):
    """Does not show the model its inputs."""

    def step(self, model: Any, batch: Any, criterion: Any) -> StepOutput:
        return super().step(model, (torch.zeros_like(batch[0]), batch[1]), criterion)


def test_a_model_that_can_ends_as_soon_as_it_has(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result["status"] == "finished"
    assert result["reason"] == "trainer.overfit: the samples are learnt by heart"
    assert result["steps"] < 1000
    log = (tmp_path / "run/run.log").read_text()
    assert "the model can learn" in log
    assert "8 training rows, again and again" in log


@pytest.mark.parametrize(
    "more",
    [
        ["data=diabetes"],
        pytest.param(["data=digits_multilabel"], marks=pytest.mark.thorough),
        pytest.param(["data=digits", "loss=supervised_contrastive", "metrics=retrieval"], marks=pytest.mark.thorough),
        pytest.param(["trainer.overfit.samples=40", "data.batch_size=16"], marks=pytest.mark.thorough),
    ],
)
def test_other_kinds_of_targets(more: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, *more)["reason"].startswith("trainer.overfit")


def test_labels_that_contradict_each_other(tmp_path: Path) -> None:
    data = ["data=custom", "data.dataset._target_=tests.trainer.test_overfit.Contradicting"]
    error = failed(tmp_path, *data)
    assert "8 of the samples have the same input as another one, and a different target" in str(error)


def test_no_gradient_reaches_a_layer(tmp_path: Path) -> None:
    error = failed(tmp_path, "model=custom", "~model.hidden", "model._target_=tests.trainer.test_overfit.Cut")
    assert "no gradient reaches first.weight, first.bias" in str(error)


def test_a_softmax_in_front_of_cross_entropy(tmp_path: Path) -> None:
    model = ["model=custom", "~model.hidden", "model._target_=tests.trainer.test_overfit.Softmaxed", "optim.lr=0.05"]
    error = failed(tmp_path, *model, "trainer.overfit.steps=400")
    assert "applies a softmax of its own" in str(error)
    assert "logits" in str(error.fix)


def test_steps_that_are_too_small(tmp_path: Path) -> None:
    assert "the loss has hardly changed" in str(failed(tmp_path, "optim.lr=1e-7"))


def test_too_few_steps(tmp_path: Path) -> None:
    error = failed(tmp_path, "optim.lr=5e-4")
    assert "the loss still falls" in str(error)
    assert "trainer.overfit.steps=N" in str(error)


@pytest.mark.thorough
def test_steps_that_are_too_large(tmp_path: Path) -> None:
    error = failed(tmp_path, "data=diabetes", "loss=l1", "optim=sgd", "optim.lr=300", "model.hidden=[]")
    assert "too large" in str(error)


@pytest.mark.thorough
def test_a_task_that_does_not_show_the_inputs(tmp_path: Path) -> None:
    error = failed(tmp_path, "trainer.task._target_=tests.trainer.test_overfit.Blind", "trainer.overfit.steps=300")
    assert "no gradient reaches" in str(error) or "stays where it is" in str(error)


@pytest.mark.thorough
def test_a_resumed_check_goes_on_from_its_losses(tmp_path: Path) -> None:
    cfg = compose([*WINE, "optim.lr=3e-3", "checkpoint.every_steps=25"]).cfg
    from lightkit.trainer.overfit import Overfit

    whole = Runner(cfg, tmp_path / "whole").run()
    part = Overfit(0.01)
    part.load_state_dict({"first": 2.0, "floor": 0.5, "losses": [1.0]})
    assert part.state_dict() == {"first": 2.0, "floor": 0.5, "losses": [1.0]}
    assert whole["status"] == "finished"
