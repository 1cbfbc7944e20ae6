"""What each family of metrics gets to see of the model's output."""

from __future__ import annotations

import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics import classification, regression

from lightkit.metrics import SplitMetrics
from lightkit.metrics.inputs import kind_of
from tests.metrics.test_split import CLASSES, feed, multiclass, outputs


def test_shares_of_classes_count_as_their_largest():
    preds, target = outputs()
    soft = nn.functional.one_hot(target, CLASSES).float() * 0.7 + 0.3 / CLASSES
    hard = feed(SplitMetrics("train", multiclass), preds, target, 16).compute()
    metrics = SplitMetrics("train", multiclass)
    for at in range(0, len(preds), 16):
        metrics.update(preds[at : at + 16], soft[at : at + 16], torch.zeros(()), len(preds[at : at + 16]))
    mixed = metrics.compute()
    assert {name: value for name, value in mixed.items() if "loss" not in name} == {
        name: value for name, value in hard.items() if "loss" not in name
    }


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_binary_outputs_are_logits_whatever_their_range(shape):
    # all logits in 0..1: torchmetrics by itself would take them for probabilities
    logits, target = torch.rand(50), (torch.arange(50) % 2).float()
    metrics = SplitMetrics("val", lambda: {"recall": classification.BinaryRecall()})
    metrics.update(logits.view(shape), target.view(shape), torch.zeros(()), 50)
    assert metrics.compute()["val/recall"] == 1.0


def test_multilabel_targets_may_be_floats():
    preds, target = torch.randn(60, 3), (torch.rand(60, 3) > 0.5).float()
    metrics = SplitMetrics("val", lambda: {"exact": classification.MultilabelExactMatch(3)})
    metrics.update(preds, target, torch.zeros(()), 60)
    assert metrics.compute()["val/exact"] == pytest.approx(float(((preds > 0) == (target > 0.5)).all(1).float().mean()))


@pytest.mark.parametrize(("left", "right"), [((90,), (90, 1)), ((90, 1), (90,)), ((90, 2), (90, 2))])
def test_regression_is_counted_in_double_precision(left, right):
    count = 90 if 2 not in left else 180
    target = torch.arange(count, dtype=torch.float32) / count + 10_000
    preds = target + torch.linspace(-0.1, 0.1, count)
    make = lambda: {"r2": regression.R2Score(), "rmse": regression.MeanSquaredError(squared=False)}  # noqa: E731
    values = {}
    for batch in (7, 90):
        metrics = SplitMetrics("val", make)
        for p, t in zip(preds.view(left).split(batch), target.view(right).split(batch)):
            metrics.update(p, t, torch.zeros(()), len(p))
        values[batch] = metrics.compute()
    error = preds.double() - target.double()
    assert values[7]["val/rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-12)
    assert values[7] == pytest.approx(values[90], rel=1e-6)


def test_half_precision_outputs_are_widened():
    preds, target = outputs()
    metrics = SplitMetrics("val", multiclass)
    metrics.update(preds.bfloat16(), target, torch.zeros((), dtype=torch.bfloat16), len(target))
    assert 0 <= metrics.compute()["val/accuracy"] <= 1


def test_wrapped_metrics_count_as_what_they_wrap():
    wrapped = torchmetrics.wrappers.ClasswiseWrapper(classification.MulticlassF1Score(CLASSES, average=None))
    assert kind_of(wrapped) == "scores"
    preds, target = outputs()
    metrics = feed(SplitMetrics("val", lambda: {"f1": wrapped}), preds, target, 9, stop=45)
    other = SplitMetrics("val", lambda: {"f1": wrapped.clone()})
    other.load_state_dict(metrics.state_dict())
    assert other.compute() == metrics.compute()
    assert len(metrics.compute()) == 1 + CLASSES
