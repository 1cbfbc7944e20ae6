"""Projects of strangers: a planted fault is named, and a healthy project is not accused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.doctor.strangers import faults_data, faults_training, healthy
from tests.doctor.strangers.cases import Case

PLANTED = [*faults_training.CASES, *faults_data.CASES]
FAULTS = {case.name: case for case in PLANTED}
HEALTHY = {case.name: case for case in healthy.CASES}
ALLOWED_MISSES, ALLOWED_ACCUSED = 1, 0
"""So many names may stand below, of 54 faults and 25 healthy projects; neither number may ever rise."""
KNOWN_MISSES = {"a third of yes and no are swapped"}
KNOWN_ACCUSED: set[str] = set()
CHEAP = ("a row that cannot be read", "softmax before cross entropy", "strong dropout")
"""Cases of the ordinary suite, with which the others begin."""


def examine(case: Case, project: Path, cli: Callable[..., Outcome]) -> None:
    outcome = cli("doctor", "--json", "--seconds", "600", *case.write(project))
    right, loud = case.judge(outcome.code, outcome.out, outcome.err)
    assert right, json.dumps([f"expected: {case.expects or 'nothing'}", f"status {outcome.code}", *loud], indent=2)


@pytest.mark.thorough(first=0)
def test_a_row_that_cannot_be_read_is_named(project: Path, cli: Callable[..., Outcome]) -> None:
    examine(FAULTS[CHEAP[0]], project, cli)


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(
    "name", sorted({*FAULTS} - KNOWN_MISSES - {CHEAP[0]}, key=lambda name: (name not in CHEAP, name))
)
def test_the_fault_is_named(project: Path, cli: Callable[..., Outcome], name: str) -> None:
    examine(FAULTS[name], project, cli)


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("name", sorted({*HEALTHY} - KNOWN_ACCUSED, key=lambda name: (name not in CHEAP, name)))
def test_a_healthy_project_is_not_accused(project: Path, cli: Callable[..., Outcome], name: str) -> None:
    examine(HEALTHY[name], project, cli)


def test_few_are_judged_wrongly() -> None:
    assert (len(PLANTED), len(FAULTS), len(HEALTHY)) == (54, 54, 25)
    assert {*FAULTS} >= KNOWN_MISSES
    assert {*HEALTHY} >= KNOWN_ACCUSED
    assert len(KNOWN_MISSES) <= ALLOWED_MISSES
    assert len(KNOWN_ACCUSED) <= ALLOWED_ACCUSED
