"""Schedules that lower the rate at once."""

from __future__ import annotations

import math

import pytest

from lightkit.common.errors import UserError
from lightkit.optim import Plateau, Step
from tests.optim.test_schedulers import curve, make


def test_step_at_milestones():
    schedule = make(Step, total=20, milestones=[1, 2.4], gamma=0.1, floor=0.05)
    assert curve(schedule) == pytest.approx([1.0] * 5 + [0.1] * 7 + [0.05] * 8)


def test_step_every_few_epochs():
    assert curve(make(Step, total=20, every_epochs=1.4, gamma=0.5)) == pytest.approx(
        [0.5 ** (i // 7) for i in range(20)]
    )


def test_plateau_waits_and_falls():
    schedule = make(Plateau, 1.0, mode="max", factor=0.5, patience=1, cooldown=1, floor=0.2)
    assert schedule.monitored
    rates = []
    for value in [0.5, 0.6, 0.6, math.nan, 0.6, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]:
        schedule.epoch_end(value)
        rates.append(schedule.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2, 0.2])


@pytest.mark.parametrize(("mode", "values"), [("min", [1.0, 0.95]), ("max", [1.0, 1.05])])
def test_plateau_counts_changes_above_the_threshold_only(mode, values):
    for threshold, expected in ((0.0, 1.0), (0.1, 0.1)):
        schedule = make(Plateau, mode=mode, patience=0, threshold=threshold)
        for value in values:
            schedule.epoch_end(value)
        assert schedule.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_plateau_falls_during_warmup_too():
    schedule = make(Plateau, mode="min", patience=0, warmup_steps=1)
    schedule.epoch_end(1.0)
    schedule.epoch_end(1.0)
    assert curve(schedule, 3) == pytest.approx([0.5, 0.1, 0.1])


def test_plateau_without_a_value():
    with pytest.raises(UserError, match="plateau needs a validated value"):
        make(Plateau, mode="min").epoch_end(None)
