"""Projects of strangers: a planted fault is named, and a healthy project is not accused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.doctor.strangers import faults_data, faults_steps, faults_training, healthy
from tests.doctor.strangers.cases import Case
from tests.doctor.strangers.known import ALLOWED_ACCUSED, ALLOWED_MISSES, KNOWN_ACCUSED, KNOWN_MISSES

PLANTED = [*faults_training.CASES, *faults_steps.CASES, *faults_data.CASES]
FAULTS = {case.name: case for case in PLANTED}
HEALTHY = {case.name: case for case in healthy.CASES}
QUICK = {
    "rate of SGD diverges",
    "softmax before cross entropy",
    "a row that cannot be read",
    "a layer of the wrong size",
    "padding is left out of the loss",
    "strong dropout",
}
"""Cases of the ordinary suite: cheap ones."""


def examine(case: Case, project: Path, cli: Callable[..., Outcome]) -> tuple[bool, str]:
    outcome = cli(*case.write(project))
    right, told = case.judge(outcome.code, outcome.out, outcome.err)
    return right, json.dumps([f"expected: {case.expects or 'nothing'}", f"status {outcome.code}", *told], indent=2)


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_cheap_case_is_judged_rightly(project, cli, name) -> None:
    right, told = examine({**FAULTS, **HEALTHY}[name], project, cli)
    assert right, told


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*FAULTS} - KNOWN_MISSES - QUICK))
def test_the_fault_is_named(project, cli, name) -> None:
    right, told = examine(FAULTS[name], project, cli)
    assert right, told


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*HEALTHY} - KNOWN_ACCUSED - QUICK))
def test_a_healthy_project_is_not_accused(project, cli, name) -> None:
    right, told = examine(HEALTHY[name], project, cli)
    assert right, told


def test_few_are_judged_wrongly() -> None:
    assert (len(PLANTED), len(FAULTS), len(HEALTHY)) == (54, 54, 25)
    assert {*FAULTS} >= KNOWN_MISSES
    assert {*HEALTHY} >= KNOWN_ACCUSED
    assert len(KNOWN_MISSES) <= ALLOWED_MISSES
    assert len(KNOWN_ACCUSED) <= ALLOWED_ACCUSED
