from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lightkit.cli.sweep as sweep_table
from lightkit.cli.sweep import SweepDisplay, headline, job_labels
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


def a_state(name: str, status: str, best: float | None, *overrides: str) -> JobState:
    return JobState(Job(name, Path(name), overrides, ""), status, metric="val/accuracy", best=best)


def test_a_failed_job_is_not_the_best() -> None:
    states = [a_state("a", "failed", 0.9), a_state("b", "finished", 0.5)]
    assert headline(states, "max").endswith("best val/accuracy 0.5000 (b)")
    assert headline(states[:1], "max") == "0 of 1 job finished, 1 failed"


def test_names_of_a_sweep_that_has_grown_by_a_key_tell_it_too() -> None:
    old = [a_state(f"seed={n}", "finished", 0.5 + n, "data=wine", "optim.lr=0.1", f"seed={n}") for n in range(2)]
    new = [
        a_state(f"optim.lr=0.2,seed={n}", "finished", 0.5, "data=wine", "optim.lr=0.2", f"seed={n}") for n in range(2)
    ]
    labels = job_labels([*old, *new])
    assert list(labels.values()) == [
        "seed=0  (optim.lr=0.1)",
        "seed=1  (optim.lr=0.1)",
        "optim.lr=0.2,seed=0",
        "optim.lr=0.2,seed=1",
    ]
    assert list(job_labels(old).values()) == ["seed=0", "seed=1"]
    assert headline([*old, *new], "max").endswith("best val/accuracy 1.5000 (seed=1  (optim.lr=0.1))")
