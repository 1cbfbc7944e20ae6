"""Losses that take other things than an output and a target get them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.trainer import ByName
from tests.conftest import Cli

ROWS = 6
X, OTHER, THIRD = torch.randn(3, ROWS, 4, generator=torch.Generator().manual_seed(0)).unbind(0)
SIGNS, VALUES = (torch.arange(ROWS) % 2) * 2.0 - 1, X.sum(1)
CLASSES, LABELS = torch.arange(ROWS) % 3, (torch.arange(ROWS * 3).reshape(ROWS, 3) % 2).float()


class Several(nn.Linear):
    """Gives several outputs, by name or in their order."""

    def __init__(self, kind: type) -> None:
        torch.manual_seed(0)
        super().__init__(4, 2)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        mean, spread = super().forward(x).unbind(-1)
        return {"logits": mean, "var": spread.exp()} if self.kind is dict else (mean, spread.exp())


class Spoken(nn.Linear):
    """Gives a distribution over 3 letters at each of T times, `(T, B, 3)`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(len(x), 4, 1)).transpose(0, 1)


def linear(outputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, outputs)


LENGTHS = (torch.full((ROWS, 1), 1), torch.full((ROWS,), 4), torch.full((ROWS,), 1))
CASES: dict[str, tuple[nn.Module, nn.Module, dict[str, Any], Any, Any]] = {
    "variances by name": (
        nn.GaussianNLLLoss(), Several(dict), {"outputs": {"input": "logits", "var": "var"}}, (X, VALUES),
        lambda m: F.gaussian_nll_loss(m(X)["logits"], VALUES, m(X)["var"])),
    "variances by place": (
        nn.GaussianNLLLoss(), Several(tuple), {"outputs": {"input": 0, "var": 1}}, (X, VALUES),
        lambda m: F.gaussian_nll_loss(m(X)[0], VALUES, m(X)[1])),
    "triplets": (
        nn.TripletMarginLoss(), linear(3), {"batch": ["anchor", "positive", "negative"],
                                            "each": ["anchor", "positive", "negative"]}, (X, OTHER, THIRD),
        lambda m: F.triplet_margin_loss(m(X), m(OTHER), m(THIRD))),
    "triplets with a distance": (
        nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(p=1)), linear(3),
        {"batch": ["anchor", "positive", "negative"], "each": ["anchor", "positive", "negative"]}, [X, OTHER, THIRD],
        lambda m: F.triplet_margin_loss(m(X), m(OTHER), m(THIRD), p=1)),
    "pairs": (
        nn.CosineEmbeddingLoss(), linear(3), {"batch": ["input1", "input2", "target"], "each": ["input1", "input2"]},
        (X, OTHER, SIGNS), lambda m: F.cosine_embedding_loss(m(X), m(OTHER), SIGNS)),
    "ranks": (
        nn.MarginRankingLoss(), linear(1), {"batch": ["input1", "input2", "target"], "each": ["input1", "input2"]},
        {"input1": X, "input2": OTHER, "target": SIGNS, "id": CLASSES},
        lambda m: F.margin_ranking_loss(m(X).squeeze(-1), m(OTHER).squeeze(-1), SIGNS)),
    "speech": (
        nn.CTCLoss(), Spoken(1, 3), {"batch": ["x", "targets", "input_lengths", "target_lengths"],
                                     "outputs": {"log_probs": 0}, "activation": nn.LogSoftmax(-1)}, (X, *LENGTHS),
        lambda m: F.ctc_loss(m(X).log_softmax(-1), *LENGTHS)),
    "signs": (
        nn.SoftMarginLoss(), linear(1), {"encoding": "signs"}, (X, (SIGNS + 1) / 2),
        lambda m: F.soft_margin_loss(m(X).squeeze(-1), SIGNS)),
    "hinge": (
        nn.HingeEmbeddingLoss(), linear(1), {"encoding": "signs"}, (X, (SIGNS + 1) / 2),
        lambda m: F.hinge_embedding_loss(m(X).squeeze(-1), SIGNS)),
    "distributions": (
        nn.KLDivLoss(reduction="batchmean"), linear(3), {"encoding": "one_hot", "activation": nn.LogSoftmax(1)},
        (X, CLASSES), lambda m: F.cross_entropy(m(X), CLASSES)),
    "chances": (
        nn.BCELoss(), linear(3), {"activation": nn.Sigmoid()}, (X, LABELS),
        lambda m: F.binary_cross_entropy_with_logits(m(X), LABELS)),
    "log-chances": (
        nn.NLLLoss(), linear(3), {"activation": nn.LogSoftmax(1)}, (X, CLASSES),
        lambda m: F.cross_entropy(m(X), CLASSES)),
    "labels by number": (
        nn.MultiLabelMarginLoss(), linear(3), {"encoding": "indexes"}, (X, LABELS),
        lambda m: F.multilabel_margin_loss(m(X), torch.tensor([[1, -1, -1], [0, 2, -1]]).repeat(3, 1))),
}  # fmt: skip
"""Loss, model, arguments of the task, batch, and the loss as PyTorch computes it."""


@pytest.mark.parametrize("name", CASES)
def test_each_loss_gets_what_it_takes(name: str) -> None:
    criterion, model, options, batch, expected = CASES[name]
    step = ByName(**options).step(model, batch, criterion)
    torch.testing.assert_close(step.loss, expected(model))
    step.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert (step.preds is None) == ("each" in options or name == "speech")
    assert step.preds is None or len(step.preds) == len(step.target) == ROWS


@pytest.mark.parametrize(
    ("options", "batch", "words"),
    [
        ({"encoding": "roman"}, (X, VALUES), r"encoding: no such encoding[\s\S]*signs"),
        ({"inputs": ["y"]}, (X, VALUES), r"inputs: the model is to get what no sample has[\s\S]*x, target"),
        ({"batch": ["x"], "each": ["y"]}, (X, VALUES), "each: the model is to get what no sample has"),
        ({"batch": ["x", "a", "b"]}, (X, VALUES), r"not what the task takes apart[\s\S]*x, a, b"),
        ({}, {"x": X}, "not what the task takes apart"),
        ({"outputs": {"input": "mean"}}, (X, VALUES), r"outputs: the model has no such output[\s\S]*logits, var"),
    ],
)
def test_what_does_not_fit_is_told(options: dict[str, Any], batch: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ByName(**options).step(Several(dict), batch, nn.MSELoss())


OWN = """
import torch
from torch import nn

class Gaussian(nn.Module):
    def __init__(self, num_classes, hidden=(8,)):
        super().__init__()
        self.layer = nn.Linear(10, 2)

    def forward(self, x):
        mean, spread = self.layer(x).unbind(-1)
        return {"logits": mean, "var": nn.functional.softplus(spread) + 1e-3}
"""
GAUSSIAN = ("data=diabetes", "loss=custom", "loss._target_=torch.nn.GaussianNLLLoss", "trainer.epochs=2", "device=cpu")


def test_a_run_with_variances_trains_and_one_without_the_task_says_what_to_do(cli: Cli, project: Path) -> None:
    (project / "own.py").write_text(OWN)
    (project / "conf").mkdir()
    (project / "conf/_project.yaml").write_text("# mine\n")
    refused = cli("train", *GAUSSIAN, "model.hidden=[8]")
    assert refused.code == 2
    assert "the loss takes input, target, var" in refused.err
    assert "trainer.task._target_=lightkit.trainer.ByName" in refused.err
    task = ("trainer.task._target_=lightkit.trainer.ByName", "trainer.task.outputs={input: logits, var: var}")
    ran = cli("train", *GAUSSIAN, "model=custom", "model._target_=own.Gaussian", *task)
    assert ran.code == 0, ran.err
    assert "best val/" in ran.out
