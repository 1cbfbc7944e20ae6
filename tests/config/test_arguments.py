"""What a place in the configuration wants, told from source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightkit.config.arguments import KINDS, mismatch

Cli = Callable[..., Any]

WRONG = [
    ("model", "torch.optim.SGD", "a network or layer (torch.nn.Module)", "optim._target_=torch.optim.SGD"),
    ("model", "torch.optim.lr_scheduler.StepLR", "a network or layer", "scheduler=torch scheduler.scheduler._target_="),
    ("trainer.task", "lightkit.models.MLP", "a task (lightkit.trainer.Task)", "model._target_=lightkit.models.MLP"),
    ("trainer.callbacks.x", "torch.nn.ReLU", "a callback (lightkit.trainer.Callback)", "model._target_=torch.nn.ReLU"),
    ("loss", "torch.nn.Linear", "called with the output and the target", "model._target_=torch.nn.Linear"),
    ("loss", "torch.optim.Adam", "called with the output and the target", "optim._target_=torch.optim.Adam"),
    ("metrics.val.f1", "torch.nn.MSELoss", "a metric (torchmetrics.Metric)", "loss._target_=torch.nn.MSELoss"),
    ("optim", "torchmetrics.MeanMetric", "an optimizer", "metrics.val.NAME._target_=torchmetrics.MeanMetric"),
    ("optim", "torch.optim.LBFGS", "an optimizer whose step() needs no closure", "optim=adamw"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "target", "expected", "fix"), WRONG)
def test_a_class_in_the_wrong_place_is_told_what_the_place_wants(
    key: str, target: str, expected: str, fix: str, cli: Cli
) -> None:
    done = cli("train", "data=wine", f"{key}._target_={target}")
    assert done.code == 2
    assert f"error: {key}._target_: " in done.err
    assert f"expected: {expected}" in done.err or expected in done.err
    assert f"fix:      {fix}" in done.err
    assert "1 problem found" in done.err, "nothing is said of arguments that another class would take"


@pytest.mark.parametrize(
    ("key", "target"),
    [
        (("model",), "torchvision.models.resnet18"),
        (("model",), "torch.nn.Identity"),
        (("loss",), "torch.nn.functional.cross_entropy"),
        (("loss",), "torch.nn.CrossEntropyLoss"),
        (("loss",), "lightkit.losses.FocalLoss"),
        (("optim",), "timm.optim.Lamb"),
        (("scheduler",), "lightkit.optim.Cosine"),
        (("metrics", "val", "f1"), "torchmetrics.classification.MulticlassF1Score"),
        (("metrics", "val", "all"), "torchmetrics.MetricCollection"),
        (("trainer", "task"), "lightkit.trainer.tasks.Supervised"),
        (("data", "dataset"), "torch.optim.SGD"),
        (("model", "body"), "torch.optim.SGD"),
        (("model",), "no.such.Class"),
    ],
)
def test_what_fits_or_cannot_be_told_passes(key: tuple[str, ...], target: str) -> None:
    assert mismatch(target, key) is None


def test_every_kind_exists() -> None:
    for place, kinds in KINDS.items():
        assert kinds, place
        assert mismatch("torch.optim.SGD", tuple("val" if part == "*" else part for part in place)) or place == (
            "optim",
        )
