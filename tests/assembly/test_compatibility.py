"""Parts that do not go together are refused, all of them in one report that says what to type instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit.assembly.compatibility import LOSS_TASKS, OPTIONS, check_hooks, check_monitor, check_targets
from lightkit.common.errors import UserError, UserErrors
from lightkit.trainer import Callback
from lightkit.trainer.callbacks import EarlyStopping

CROSS_ENTROPY = "torch.nn.CrossEntropyLoss"
ACCURACY = "torchmetrics.classification.MulticlassAccuracy"
METRICS = {"train": {"accuracy": ACCURACY}, "val": {"accuracy": ACCURACY}}


OF_CLASSES = {"multiclass", "segmentation", "tagging"}
"""Kinds of targets with classes for one place or for several, which share metrics."""


def test_loss_and_metrics_are_reported_together_with_one_fix() -> None:
    for task, (loss, metrics) in [item for item in OPTIONS.items() if item[0] not in OF_CLASSES]:
        text = rf"loss: this loss is for .* targets; .* {task} [\s\S]*fix: *loss={loss} metrics={metrics}"
        with pytest.raises(UserErrors, match=text) as caught:
            check_targets(task, loss=CROSS_ENTROPY, metrics=METRICS)
        assert [error.key for error in caught.value.errors] == ["loss", "metrics.train.accuracy"]


def test_only_what_is_wrong_is_in_the_fix() -> None:
    with pytest.raises(UserError, match=r"this loss is for regression[\s\S]*fix: *loss=cross_entropy$"):
        check_targets("multiclass", loss="torch.nn.MSELoss", metrics=METRICS)
    with pytest.raises(
        UserError, match=r"this metric is for multiclass .*\(and 1 more\)[\s\S]*fix: *metrics=regression$"
    ):
        check_targets("regression", loss="torch.nn.MSELoss", metrics=METRICS)


def test_targets_of_a_kind_of_its_own_need_a_task() -> None:
    with pytest.raises(UserErrors, match=r"fix: *a task class of your own \(trainer\.task"):
        check_targets("custom", loss=CROSS_ENTROPY, metrics=METRICS)


def test_what_suits_or_is_unknown_passes() -> None:
    check_targets("multiclass", loss=CROSS_ENTROPY, metrics=METRICS)
    check_targets("multiclass", loss="mine.Loss", metrics={"train": {"mine": "mine.Metric"}})
    assert all(set(tasks) <= {*OPTIONS, "custom"} for tasks in LOSS_TASKS.values())


@pytest.mark.parametrize(
    ("option", "task"), [*((metrics, task) for task, (_, metrics) in OPTIONS.items()), ("retrieval", "multiclass")]
)
def test_each_shipped_option_of_metrics_is_for_its_targets_alone(option: str, task: str) -> None:
    text = (Path(__file__).parents[2] / "conf" / "metrics" / f"{option}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    metrics = {
        split: {name: node["_target_"] for name, node in content[split].items() if isinstance(node, dict)}
        for split in ("train", "val", "test")
        if isinstance(content.get(split), dict)
    }
    assert any(metrics.values())
    check_targets(task, loss="mine.Loss", metrics=metrics)
    alike = OF_CLASSES if task in OF_CLASSES else {task}
    for other in {*OPTIONS} - alike if option != "retrieval" else ():
        with pytest.raises(UserError, match=f"this metric is for ({'|'.join(alike)}) targets"):
            check_targets(other, loss="mine.Loss", metrics=metrics)


def test_without_a_validation_split_nothing_of_it_can_be_monitored() -> None:
    check_monitor("train/loss", splits=["train"])
    with pytest.raises(UserError, match=r"metrics\.monitor: there is no validation split to take it from"):
        check_monitor("val/accuracy", splits=["train"])


class Misspelt(Callback):
    def on_epoch_end(self, trainer: Any) -> None:
        pass


class Fine(Callback):
    on_top = True

    def on_epoch(self, trainer: Any, values: dict[str, float]) -> None:
        pass

    def _on_its_own(self) -> None:
        pass


def test_a_hook_that_nothing_calls_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^callbacks\.a: Misspelt\.on_epoch_end would never be[\s\S]*nearest: on_epoch"
    ):
        check_hooks(Misspelt(), key="callbacks.a")
    check_hooks(Fine(), key="callbacks.a")
    check_hooks(EarlyStopping("val/loss", "min", patience=1), key="callbacks.a")
