from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from lightkit.sweep.job import JobOutcome
from lightkit.sweep.limits import GRACE_SECONDS, Deadline, JobWatch, ask_job, forget_request, read_request


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_is_asked_for_a_job(tmp_path: Path) -> None:
    assert read_request(tmp_path) == ""
    assert [ask_job(tmp_path), read_request(tmp_path), ask_job(tmp_path)] == [True, "save", False]
    assert [ask_job(tmp_path, now=True), read_request(tmp_path), ask_job(tmp_path, now=True)] == [True, "kill", False]
    forget_request(tmp_path)
    assert read_request(tmp_path) == ""
    (tmp_path / "mine").write_text("important")
    (tmp_path / ".stop").symlink_to(tmp_path / "mine")  # which is not written through
    ask_job(tmp_path, now=True)
    assert (tmp_path / "mine").read_text() == "important"


@pytest.mark.parametrize("sign", [".progress.json", "metrics.jsonl", "checkpoints/manifest.json"])
def test_a_job_that_shows_a_sign_of_life_does_not_stall(tmp_path: Path, sign: str) -> None:
    clock = Clock()
    watch = JobWatch(tmp_path, {"stall_limit": "10s"}, clock)
    (tmp_path / "checkpoints").mkdir()
    for size in range(1, 6):
        assert watch.action(runs=True) == ""
        clock.now += 9
        (tmp_path / sign).write_text("x" * size)
    (tmp_path / "output.log").write_text("still waiting")  # says nothing of progress
    assert watch.action(runs=True) == ""
    clock.now += 10
    assert watch.action(runs=True) == "save"
    assert watch.action(runs=True) == ""
    clock.now += GRACE_SECONDS
    assert [watch.action(runs=True), watch.action(runs=True)] == ["kill", ""]
    outcome = watch.judged(JobOutcome("a", "failed", code=137, reason="killed by signal 9"))
    assert outcome.reason == "logged nothing for sweep.stall_limit=10s, and killed as it did not save"
    assert (outcome.status, outcome.code, watch.is_tried_again) == ("failed", 1, True)


def test_a_job_that_waits_in_a_queue_comes_to_no_limit(tmp_path: Path) -> None:
    clock = Clock()
    watch = JobWatch(tmp_path, {"time_limit": "1m", "stall_limit": "1m"}, clock)
    for _ in range(3):
        assert watch.action(runs=False) == ""
        clock.now += 3600
    assert watch.action(runs=True) == ""
    clock.now += 60
    assert watch.action(runs=True) == "save"
    assert watch.judged(JobOutcome("a", "interrupted", code=143)).reason == "ran longer than sweep.time_limit=1m"
    assert not watch.is_tried_again


def test_an_end_of_its_own_counts_more_than_that_it_was_to_end(tmp_path: Path) -> None:
    watch = JobWatch(tmp_path, {})
    ask_job(tmp_path)
    assert watch.action(runs=True) == "save"
    for outcome in (
        JobOutcome("a", "finished"),
        JobOutcome("a", "failed", code=3, reason="the loss is not finite"),
        JobOutcome("a", "failed", code=137, reason="killed by signal 9"),  # by somebody else
    ):
        assert watch.judged(outcome) == outcome
    ask_job(tmp_path, now=True)
    assert watch.action(runs=True) == "kill"
    assert watch.judged(JobOutcome("a", "failed", code=137)).status == "stopped"


def test_a_sweep_without_a_budget_has_no_end(tmp_path: Path) -> None:
    clock = Clock()
    assert not Deadline({}, clock).is_over
    budget = Deadline({"budget": "1m"}, clock)
    assert not budget.is_over
    clock.now += 60
    assert budget.is_over
