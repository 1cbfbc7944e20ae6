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
from lightkit.trainer.overfit import Overfit
from lightkit.trainer.tasks import StepOutput, Supervised

WINE = ["data=wine", "trainer=overfit", "model.hidden=[32]", "device=cpu", "logger=quiet", "optim.lr=0.01"]


def run(folder: Path, *overrides: str) -> Any:
    return Runner(compose([*WINE, *overrides]).cfg, folder / "run").run()


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
        return self.head(x).softmax(1)


class Contradicting:
    """Two samples of each input, of different classes."""

    draws = False

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3), index % 2


class WithWeights(Contradicting):
    """The same, of which the rows have weights."""

    weights = torch.ones(60)


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


@pytest.mark.thorough
@pytest.mark.parametrize(
    "more",
    [
        ["data=diabetes"],
        ["data=digits_multilabel"],
        ["data=digits", "loss=supervised_contrastive", "metrics=retrieval"],
        ["trainer.overfit.samples=40", "data.batch_size=16"],
    ],
)
def test_other_kinds_of_targets(more: list[str], tmp_path: Path) -> None:
    assert run(tmp_path, *more)["reason"].startswith("trainer.overfit")


HERE = "_target_=tests.trainer.test_overfit"
FAILING = {
    "contradicting labels": (
        ["data=custom", f"data.dataset.{HERE}.Contradicting"],
        "8 of the samples have the same input as another one, and a different target",
    ),
    "contradicting labels, and weights of rows": (
        ["data=custom", f"data.dataset.{HERE}.WithWeights"],
        "8 of the samples have the same input as another one, and a different target",
    ),
    "a layer without gradients": (
        ["model=custom", "~model.hidden", f"model.{HERE}.Cut"],
        "no gradient reaches first.weight, first.bias",
    ),
    "a softmax in front of cross entropy": (
        ["model=custom", "~model.hidden", f"model.{HERE}.Softmaxed", "optim.lr=0.05", "trainer.overfit.steps=400"],
        "applies a softmax of its own … logits",
    ),
    "too small steps": (["optim.lr=1e-7"], "the loss has hardly changed"),
    "too few steps": (["optim.lr=5e-4"], "the loss still falls … trainer.overfit.steps=N"),
}
ALSO_FAILING = {
    "too large steps": (["data=diabetes", "loss=l1", "optim=sgd", "optim.lr=300", "model.hidden=[]"], "too large"),
    "a task that hides the inputs": (
        [f"trainer.task.{HERE}.Blind", "trainer.overfit.steps=300"],
        "no gradient reaches",
    ),
}


def fails(folder: Path, overrides: list[str], text: str) -> None:
    with pytest.raises(UserError, match="the model does not learn the samples by heart") as caught:
        run(folder, "trainer.overfit.steps=100", *overrides)
    assert caught.value.exit_code == 1
    assert json.loads((folder / "run/result.json").read_text())["status"] == "failed"
    assert not [part for part in text.split(" … ") if part not in str(caught.value)], str(caught.value)


@pytest.mark.parametrize("case", FAILING)
def test_what_cannot_be_learnt_says_why(case: str, tmp_path: Path) -> None:
    fails(tmp_path, *FAILING[case])


@pytest.mark.thorough
@pytest.mark.parametrize("case", ALSO_FAILING)
def test_what_else_cannot_be_learnt(case: str, tmp_path: Path) -> None:
    fails(tmp_path, *ALSO_FAILING[case])


def test_the_losses_of_a_check_come_back() -> None:
    part, state = Overfit(0.01), {"first": 2.0, "floor": 0.5, "losses": [1.0]}
    part.load_state_dict(state)
    assert part.state_dict() == state
