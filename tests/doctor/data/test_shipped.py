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
DATA = [
    ["data=digits", "data.dataset.image=false"],
    ["data=breast_cancer", "data.dataset.binary=true", "loss=bce_with_logits", "metrics=binary"],
    ["data=digits", "data.dataset.classes=[3,8]", "data.split.by=fold", "data.split.fold=2"],
    ["data=digits", "data.split.per_class=20", "data.split.val=0", "metrics.monitor=train/loss"],
    ["data=shapes", "data.dataset.train=600", "data.dataset.val=100", "data.dataset.test=200"],
]


def alarms(overrides: list[str]) -> list[Finding]:
    with examined(compose(overrides).cfg, 60) as run:
        return [finding for check in CHECKS.values() for finding in check(run) if finding.is_bad]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("experiment", QUICK)
def test_no_alarm_in_an_experiment(experiment: str) -> None:
    assert alarms([f"experiment={experiment}"]) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("overrides", DATA, ids=" ".join)
def test_no_alarm_in_a_data_set(overrides: list[str]) -> None:
    assert alarms(overrides) == []
