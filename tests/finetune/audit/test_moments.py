"""Rates that a schedule takes to 0, and keeps there."""

from __future__ import annotations

import pytest

from lightkit.finetune.audit.plan import first_zero_steps, probe_steps
from lightkit.finetune.audit.tables import GroupRow, PhaseTable


def test_steps_in_each_phase() -> None:
    assert probe_steps([(0, 4, 8), (12,)], 14) == {*range(12), 12, 13}
    found = probe_steps([(0,)], 1600)
    assert found == set(range(0, 1600, 100))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0),
        ([0.1, 0.1, 0.0, 0.0, 0.0, 0.0], 2),
        ([0.1, 0.1, 0.1, 0.0, 0.0, 0.0], 4),
        ([0.0, 0.1, 0.0, 0.1, 0.0, 0.1], None),  # with cycles of an epoch
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.0], None),
    ],
)
def test_the_step_from_which_on_a_rate_is_0(rates: list[float], expected: int | None) -> None:
    known = {step: [rate, 1.0] for step, rate in enumerate(rates)} | {6: [1.0, 1.0]}
    assert first_zero_steps(known, (0, 2, 4), 6) == ({} if expected is None else {0: expected})


def test_nothing_is_told_of_rates_that_are_not_known() -> None:
    assert first_zero_steps({}, (0, 2, 4), 6) == {}


def row(group: str, *, rate: float | None, zero_from: int | None) -> GroupRow:
    return GroupRow(
        group, ("w",), 1, frozen=False, rate=rate, rates=None, weight_decay=None, norm="", rules=(), zero_from=zero_from
    )


def test_a_rate_of_0_that_is_meant_is_not_told() -> None:
    rows = (row("meant", rate=0.0, zero_from=3), row("idle", rate=0.1, zero_from=3), row("late", rate=0.1, zero_from=6))
    table = PhaseTable("epoch 1", (3, 6), (*rows, row("fine", rate=0.1, zero_from=None)))
    assert [line.partition(":")[0] for line in table.groups_without_rate()] == ["group idle"]
    assert table.groups_that_stop() == ["group late: its learning rate is 0 from step 6 on, by the schedule"]
