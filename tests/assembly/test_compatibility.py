"""Parts that do not go together are refused, all of them in one report that says what to type instead."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.assembly.compatibility import LOSS_TASKS, OPTIONS, check_hooks, check_monitor, check_targets
from lightkit.common.errors import UserError, UserErrors
from lightkit.trainer import Callback
from lightkit.trainer.callbacks import EarlyStopping

CROSS_ENTROPY = "torch.nn.CrossEntropyLoss"
ACCURACY = "torchmetrics.classification.MulticlassAccuracy"
METRICS = {"train": {"accuracy": ACCURACY}, "val": {"accuracy": ACCURACY}}


@pytest.mark.parametrize("task", [name for name in OPTIONS if name != "multiclass"])
def test_loss_and_metrics_are_reported_together_with_one_fix(task: str) -> None:
    loss, metrics = OPTIONS[task]
    text = rf"loss: this loss is for multiclass targets; .* {task} [\s\S]*fix: *loss={loss} metrics={metrics}"
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
    assert all(set(tasks) <= set(OPTIONS) for tasks in LOSS_TASKS.values())


@pytest.mark.parametrize(
    ("monitor", "has_val", "text"),
    [
        ("val/acuracy", True, r"metrics\.monitor: no such value[\s\S]*nearest: val/accuracy"),
        ("val/accuracy", False, r"metrics\.monitor: there is no validation split to take it from"),
    ],
)
def test_a_value_that_will_not_exist_cannot_be_monitored(monitor: str, has_val: bool, text: str) -> None:
    with pytest.raises(UserError, match=text):
        check_monitor(monitor, METRICS, has_val=has_val)


@pytest.mark.parametrize("monitor", ["train/loss", "val/accuracy", "val/accuracy/setosa"])
def test_what_will_exist_can_be_monitored(monitor: str) -> None:
    check_monitor(monitor, METRICS, has_val=True)


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


def test_hooks_that_there_are_pass() -> None:
    check_hooks(Fine(), key="callbacks.a")
    check_hooks(EarlyStopping("val/loss", "min", patience=1), key="callbacks.a")
