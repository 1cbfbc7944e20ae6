"""Rates that a schedule takes to 0, and keeps there."""

from __future__ import annotations

from lightkit.finetune.tables import GroupRow, PhaseTable


def row(group: str, *, rate: float | None, zero_from: int | None) -> GroupRow:
    return GroupRow(
        group, ("w",), 1, frozen=False, rate=rate, rates=None, weight_decay=None, norm="", rules=(), zero_from=zero_from
    )


def test_a_rate_of_0_that_is_meant_is_not_told() -> None:
    rows = (row("meant", rate=0.0, zero_from=3), row("idle", rate=0.1, zero_from=3), row("late", rate=0.1, zero_from=6))
    table = PhaseTable("epoch 1", (3, 6), (*rows, row("fine", rate=0.1, zero_from=None)))
    assert [line.partition(":")[0] for line in table.groups_without_rate()] == ["group idle"]
    assert table.groups_that_stop() == ["group late: its learning rate is 0 from step 6 on, by the schedule"]
