from __future__ import annotations

from typing import Any

import pytest

from lightkit.trainer import clock as module
from lightkit.trainer.clock import Clock
from lightkit.trainer.report import Reporter
from lightkit.trainer.state import State
from lightkit.trainer.timetable import Timetable
from tests.trainer.parts import trainer


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: times[0])
    return times


def test_totals_hold_what_was_read_and_what_was_not(now: list[float]) -> None:
    clock = Clock()
    now[0], clock.data_seconds = 110.0, 2.0
    clock.leave_out(5.0)
    assert clock.read(50) == {"speed/samples_per_second": 10.0, "speed/data_wait": 0.4}
    assert clock.totals() == (5.0, 2.0)
    now[0], clock.data_seconds = 113.0, 1.0
    assert clock.totals() == (8.0, 3.0)
    clock.leave_out(9.0)
    assert clock.totals() == (5.0, 3.0)


def test_values_of_the_machine_are_logged_in_the_same_row_and_kept_nowhere() -> None:
    seen: list[dict[str, float]] = [{"system/ram_gib": 1.0}, {}]
    run = trainer(timetable={"epochs": 1, "log_steps": 2}, clock=Clock(lambda: seen.pop(0)))
    run.fit()
    assert run.logger.series("system/ram_gib") == [(2, 1.0)]
    assert [step for step, _ in run.logger.series("train/loss_step")] == [2, 4]
    assert seen == []
    assert "system/ram_gib" not in run.state.last


def test_the_row_counts_once() -> None:
    rows: list[Any] = []
    state = State()
    logger: Any = type("Rows", (), {"scalars": lambda self, values, **place: rows.append(values)})()
    timetable = Timetable(epoch_samples=4, batch_size=2, epochs=1)
    Reporter(logger, state, timetable, Clock()).values({"a": 1.0}, {"b": 2.0})
    assert (rows, state.rows, state.last) == ([{"a": 1.0, "b": 2.0}], 1, {"a": 1.0})
