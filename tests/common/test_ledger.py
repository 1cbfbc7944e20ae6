"""What a checkpoint knows of the rows that were logged."""

from __future__ import annotations

import json
import math
from typing import Any

from lightkit.common.ledger import Ledger, audit


def logged(*steps: int) -> tuple[list[dict[str, Any]], Ledger]:
    """Rows as they stand in the file, and the ledger that grew with them."""
    rows, ledger = [], Ledger()
    for number, step in enumerate(steps):
        values = {"a": 0.1 * number, "b": math.nan, "speed/x": float(number)}
        ledger.add(values, step=step, epoch=0)
        row = {"step": step, "epoch": 0, "time": 1.5 + number, **values, "b": None, "system/memory": 3.0}
        rows.append(json.loads(json.dumps(row)))
    return rows, ledger


def test_rows_as_they_were_logged_are_all_there() -> None:
    rows, ledger = logged(2, 4, 4, 6)
    found = audit(rows, ledger, step=6)
    assert found.rows == rows
    assert found.problems == []
    assert Ledger.of(rows).hex() == ledger.hex() == Ledger(ledger.hex()).hex()
    assert len(ledger) == 4
    assert len(ledger.hex()) == 64


def test_clock_and_machine_do_not_count() -> None:
    rows, ledger = logged(2)
    assert audit([{**rows[0], "time": 9.0, "speed/x": 7.0, "system/y": 1.0}], ledger, step=2).problems == []


def test_rows_after_the_checkpoint_and_at_its_step_are_left_out_without_a_word() -> None:
    rows, _ = logged(2, 4, 4, 6)
    _, ledger = logged(2, 4)
    found = audit(rows, ledger, step=4)
    assert found.rows == rows[:2]
    assert found.problems == []


def test_rows_that_are_gone_are_counted_with_their_steps_and_no_later_one_takes_their_place() -> None:
    rows, ledger = logged(2, 4, 6, 8)
    later = {"step": 8, "epoch": 0, "test/loss": 1.0}
    found = audit([rows[0], rows[3], later], ledger, step=8)
    assert found.rows == [rows[0], rows[3]]
    assert found.problems == ["2 rows are missing (steps 4, 6)"]


def test_rows_that_were_changed_stay_and_are_told() -> None:
    rows, ledger = logged(2, 4, 6)
    rows[1]["a"] = 5.0
    found = audit(rows, ledger, step=6)
    assert found.rows == rows
    assert found.problems == ["1 row has other values than were logged (step 4)"]


def test_rows_of_somebody_else_are_left_out_and_told() -> None:
    rows, ledger = logged(2, 4)
    mine = {"step": 3, "note": "mine"}
    found = audit([rows[0], mine, rows[0], rows[1]], ledger, step=4)
    assert found.rows == rows
    assert found.problems == ["2 rows were not logged by this run (steps 2, 3)"]


def test_many_steps_are_named_by_the_first_and_the_last() -> None:
    rows, ledger = logged(*range(1, 40))
    assert audit(rows[:9], ledger, step=39).problems == ["30 rows are missing (steps 10 to 39)"]
