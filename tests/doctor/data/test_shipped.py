"""Data that comes with lightkit raises no alarm."""

from __future__ import annotations

import pytest

from lightkit.config import compose
from lightkit.doctor.checks import examined
from lightkit.doctor.finding import Finding
from tests.doctor.data.planted import CHECKS

QUICK = [
    "breast_cancer",
    "custom_task",
    "diabetes",
    "digits_cnn",
    "digits_mlp",
    "digits_multilabel",
    "retrieval",
    "wine",
]
SLOW = [
    "char_lm",
    "ensembles",
    "shapes",
    "transfer_digits/pretrain",
    "transfer_shapes/pretrain",
    "finetune_timm/torchvision",
]
DATA = [
    ["data=digits", "data.dataset.image=false"],
    ["data=breast_cancer", "data.dataset.binary=true", "loss=bce_with_logits", "metrics=binary"],
    ["data=digits", "data.dataset.classes=[3,8]", "data.split.by=fold", "data.split.fold=2"],
    ["data=digits", "data.split.per_class=20", "data.split.val=0", "metrics.monitor=train/loss"],
    ["data=shapes", "data.dataset.train=600", "data.dataset.val=100", "data.dataset.test=200"],
]


def found_in(overrides: list[str]) -> list[Finding]:
    with examined(compose(overrides).cfg, 60) as run:
        return [finding for check in CHECKS.values() for finding in check(run)]


def alarms(overrides: list[str]) -> list[Finding]:
    return [finding for finding in found_in(overrides) if finding.is_bad]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("experiment", QUICK)
def test_no_alarm_in_an_experiment(experiment: str) -> None:
    assert alarms([f"experiment={experiment}"]) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("overrides", DATA, ids=" ".join)
def test_no_alarm_in_a_data_set(overrides: list[str]) -> None:
    assert alarms(overrides) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("experiment", SLOW)
def test_no_alarm_in_a_large_experiment(experiment: str) -> None:
    assert alarms([f"experiment={experiment}"]) == []
