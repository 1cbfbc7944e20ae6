from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lightkit.cli.sweep_table as sweep_table
from lightkit.cli.sweep_table import SweepDisplay
from lightkit.sweep.job import Job
from lightkit.sweep.journal import Record
from lightkit.sweep.state import JobState


def test_the_time_left_goes_by_what_is_done_while_one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(sweep_table.time, "monotonic", lambda: clock[0])
    states = {name: JobState(Job(name, Path(name), (), ""), "waiting") for name in "abcd"}
    states["a"] = replace(states["a"], status="finished")
    states["b"] = replace(states["b"], status="running", share=0.5)
    display = SweepDisplay(Record(Path()))
    display.refresh(states)
    assert "left" not in display.shown(states, 9)[0]
    clock[0] += 10  # a quarter of a job
    states["b"] = replace(states["b"], share=0.75)
    assert "1 of 4 jobs finished, 1 running, 2 waiting, 1:30 left" in display.shown(states, 9)[0]
    states = {name: replace(state, status="finished") for name, state in states.items()}
    assert "left" not in display.shown(states, 9)[0]
