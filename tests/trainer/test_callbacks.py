"""Hooks into the loop."""

from __future__ import annotations

from typing import Any

from lightkit.trainer import Callback, EarlyStopping
from tests.trainer.parts import trainer


def test_early_stopping_ends_after_patience() -> None:
    stopping = EarlyStopping("val/loss", "min", patience=2, min_delta=1e9)
    run = trainer(timetable={"epochs": 50}, callbacks=[stopping])
    run.fit()
    assert run.state.epoch == 3
    assert "early stopping: val/loss has not improved 2 times" in str(run.state.stop_reason)


def test_only_overridden_step_hooks_are_called() -> None:
    class Counting(Callback):
        seen: list[int] = []

        def on_step(self, trainer: Any) -> None:
            self.seen.append(trainer.state.step)

    run = trainer(callbacks=[Counting(), Callback()], timetable={"epochs": 1})
    run.fit()
    assert Counting.seen == [1, 2, 3, 4]
    assert len(run._hooks["on_step"]) == 1
