"""Metrics of many models are those of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import classification, regression

from lightkit.metrics import SplitMetrics
from lightkit.metrics.stacked import StackedMetrics

CLASSES = 4


def classes() -> dict[str, Any]:
    options: dict[str, Any] = {"num_classes": CLASSES}
    return {
        "accuracy": classification.MulticlassAccuracy(average="micro", **options),
        "f1": classification.MulticlassF1Score(average="macro", **options),
        "each": classification.MulticlassRecall(average="none", **options),
        "weighted": classification.MulticlassPrecision(average="weighted", **options),
        "top": classification.MulticlassAccuracy(top_k=2, **options),
        "auroc": classification.MulticlassAUROC(**options),
    }


def numbers() -> dict[str, Any]:
    return {"mse": regression.MeanSquaredError(), "r2": regression.R2Score()}


def batches(kind: str, count: int, models: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]]:
    torch.manual_seed(0)
    found = []
    for number in range(count):
        size = 7 if number == count - 1 else 16
        losses = torch.rand(models)
        if kind == "classes":
            found.append((torch.randn(models, size, CLASSES), torch.randint(CLASSES, (models, size)), losses, size))
        else:
            found.append((torch.randn(models, size), torch.randn(models, size), losses, size))
    return found


@pytest.mark.parametrize(("kind", "make"), [("classes", classes), ("numbers", numbers)])
@pytest.mark.parametrize("models", [1, 3])
def test_values_are_those_of_each_model(kind: str, make: Any, models: int) -> None:
    names = ["a", "b", "c", "d"] if kind == "classes" else []
    alone = [SplitMetrics("val", make, block=2, class_names=names) for _ in range(models)]
    stacked = StackedMetrics(SplitMetrics("val", make, block=2, class_names=names), models)
    for _ in range(2):
        for preds, target, losses, size in batches(kind, 5, models):
            stacked.update(preds, target, losses, size)
            for model, own in enumerate(alone):
                own.update(preds[model], target[model], losses[model], size)
        for own, values in zip(alone, stacked.compute()):
            wanted = own.compute()
            assert list(values) == list(wanted)
            assert values == pytest.approx(wanted, abs=1e-6)
            own.reset()
        stacked.reset()


@pytest.mark.parametrize(("kind", "make"), [("classes", classes), ("numbers", numbers)])
def test_a_state_goes_on_and_can_be_taken_apart(kind: str, make: Any) -> None:
    first, second = (StackedMetrics(SplitMetrics("train", make, block=2), 3) for _ in range(2))
    parts = batches(kind, 5, 3)
    for part in parts[:3]:
        first.update(*part)
    second.load_state_dict(first.state_dict())
    alone = SplitMetrics("train", make, block=2)
    alone.load_state_dict(first.state_of(1))
    second.keep(torch.tensor([0, 1]))
    for preds, target, losses, size in parts[3:]:
        first.update(preds, target, losses, size)
        second.update(preds[:2], target[:2], losses[:2], size)
        alone.update(preds[1], target[1], losses[1], size)
    assert second.compute() == first.compute()[:2]
    assert alone.compute() == pytest.approx(first.compute()[1], abs=1e-6)


def test_without_samples_there_is_no_loss() -> None:
    values = StackedMetrics(SplitMetrics("train"), 2).compute()
    assert [list(own) for own in values] == [["train/loss"], ["train/loss"]]
