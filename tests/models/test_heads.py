"""Several targets by name: a layer for each, a loss for each, metrics for each, and predictions of each."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import lightkit
from lightkit.common.errors import UserError
from lightkit.models import MLP, Heads
from tests.conftest import Cli

RUN = [
    "train", "data=custom", "data.dataset._target_=two.Two", "model=heads", "model.heads={kind: 3, size: 1}",
    "loss=by_head", "loss.losses={kind: {_target_: torch.nn.CrossEntropyLoss}, size: {_target_: torch.nn.MSELoss}}",
    "loss.weights=uncertainty", "metrics=none", "metrics.monitor=val/kind/accuracy", "trainer.epochs=2",
    "optim.lr=0.01",
    "metrics.val={kind/accuracy: {_target_: torchmetrics.classification.MulticlassAccuracy, num_classes: 3}, "
    "size/mae: {_target_: torchmetrics.regression.MeanAbsoluteError}}", "hydra.run.dir=run",
    "metrics.test={kind/matrix: {_target_: torchmetrics.classification.MulticlassConfusionMatrix, num_classes: 3}}",
]  # fmt: skip
DATA = """
from tests.resume.sets import TwoTargets
Two = TwoTargets
"""


def test_a_run_with_two_heads(cli: Cli, project: Path) -> None:
    (project / "two.py").write_text(DATA)
    done = cli(*RUN)
    assert done.code == 0, done.out + done.err
    assert (project / "run/figures/test/kind_matrix.png").exists()
    shown = cli("plan", *RUN[1:], "finetune=head").out + cli("params", "run").out
    assert "trained_loss.log_variances.kind" in shown
    weights = torch.load(next((project / "run/checkpoints").glob("*.pt")), weights_only=True)["model"]
    assert all(weights[f"trained_loss.log_variances.{name}"] != 0 for name in ("kind", "size"))
    assert cli("predict", "run", "--output", "rows.csv").code == 0
    with open("rows.csv", newline="") as file:
        first = next(csv.DictReader(file))
    assert list(first) == ["row", "kind/target", "kind/prediction", *(f"kind/p({i})" for i in range(3)),
                           "size/target", "size/prediction"]  # fmt: skip
    model = lightkit.load("run")
    found = model.predict(torch.zeros(5, 6))
    assert found["kind"].tolist() == ["0"] * 5 or set(found["kind"]) <= {"0", "1", "2"}
    assert found["size"].shape == (5,)
    assert model.outputs(torch.zeros(5, 6))["kind"].shape == (5, 3)
    assert [*next(model.rows(torch.zeros(1, 6), proba=False))] == ["row", "kind/prediction", "size/prediction"]


def test_a_head_that_is_missing_is_named(cli: Cli, project: Path) -> None:
    (project / "two.py").write_text(DATA)
    done = cli(*RUN, "loss.losses={other: {_target_: torch.nn.L1Loss}}")
    assert done.code == 2
    assert "the model gives no such output" in done.err
    assert "['other']" in done.err


def test_heads_share_what_is_before_them() -> None:
    model = Heads(MLP(4, 6, hidden=(5,)), {"a": 2, "b": 3})
    assert {name: tuple(one.shape) for name, one in model(torch.randn(7, 4)).items()} == {"a": (7, 2), "b": (7, 3)}
    with pytest.raises(UserError, match="sizes start at 1"):
        Heads(MLP(4, 6), {"a": 0})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("loss.weights={size: -1}", "loss.weights.size: below 0"),
        ("model.heads={kind: 2, size: 1}", "loss.losses.kind: this loss cannot take the targets of its head"),
    ],
)
def test_what_a_head_cannot_take_is_named(cli: Cli, project: Path, more: str, text: str) -> None:
    (project / "two.py").write_text(DATA)
    done = cli(*RUN, more)
    assert done.code == 2, done.err
    assert text in done.err
