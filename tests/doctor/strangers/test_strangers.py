"""Projects of strangers: a planted fault is named, and a healthy project is not accused."""

from __future__ import annotations

import json

import pytest

from tests.doctor.strangers import faults_training, healthy
from tests.doctor.strangers.known import KNOWN_ACCUSED, KNOWN_MISSES

FAULTS = {case.name: case for case in faults_training.CASES}
HEALTHY = {case.name: case for case in healthy.CASES}
QUICK = ["rate of SGD diverges", "targets of 300,000", "attention across the batch", "several labels", "strong dropout"]
"""Cases of the ordinary suite."""


def examine(case, project, cli):
    outcome = cli(*case.write(project))
    right, told = case.judge(outcome.code, outcome.out, outcome.err)
    return right, json.dumps([f"status {outcome.code}", *told], indent=2)


@pytest.mark.parametrize("name", QUICK)
def test_cheap_cases(project, cli, name) -> None:
    right, told = examine({**FAULTS, **HEALTHY}[name], project, cli)
    assert right, told


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*FAULTS} - KNOWN_MISSES - {*QUICK}))
def test_the_fault_is_named(project, cli, name) -> None:
    right, told = examine(FAULTS[name], project, cli)
    assert right, f"expected /{FAULTS[name].expects}/, {FAULTS[name].severity}: {told}"


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*HEALTHY} - KNOWN_ACCUSED - {*QUICK}))
def test_a_healthy_project_is_not_accused(project, cli, name) -> None:
    right, told = examine(HEALTHY[name], project, cli)
    assert right, told


def test_what_is_not_told_is_counted() -> None:
    assert {*FAULTS} >= KNOWN_MISSES
    assert {*HEALTHY} >= KNOWN_ACCUSED
    assert len(FAULTS) == len(faults_training.CASES)
    assert not {*FAULTS} & {*HEALTHY}
