"""The end of training and checkpoints by the clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightkit.trainer import timed
from lightkit.trainer.timed import TimeLimit, passed
from tests.conftest import Cli

QUICK = ("data=wine", "model.hidden=[4]", "metrics=none", "metrics.monitor=val/loss", "logger.console.style=quiet")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes at each look."""
    now = iter(range(10**9))
    monkeypatch.setattr(timed, "monotonic", lambda: float(next(now)))


@pytest.mark.usefixtures("clock")
def test_a_run_ends_tested_and_finished_and_all_parts_count(cli: Cli, project: Path) -> None:
    assert cli("train", *QUICK, "trainer.epochs=50", "trainer.max_time=20", "name=a").code == 0
    (folder,) = (project / "outputs" / "runs").glob("*/*-a")
    result = json.loads((folder / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("finished", "trainer.max_time=20 is over")
    assert 0 < result["steps"] < 50
    assert "test/loss" in result["test"]
    assert "has finished already" in cli("resume", "a").out
    assert cli("resume", "a", "trainer.max_time=30s").code == 0
    again = json.loads((folder / "result.json").read_text())
    assert result["steps"] < again["steps"] <= result["steps"] + 10, "the time before counts"


def test_checkpoints_by_minutes_come_between_the_others(cli: Cli, project: Path) -> None:
    more = ("checkpoint.every_epochs=null", "checkpoint.every_minutes=1e-9", "checkpoint.keep_last=99", "name=a")
    assert cli("train", *QUICK, "trainer.epochs=1", *more).code == 0
    (folder,) = (project / "outputs" / "runs").glob("*/*-a")
    assert len([*(folder / "checkpoints").glob("step-*.pt")]) > 3


@pytest.mark.parametrize("value", ["soon", "0", "-3", "1x"])
def test_what_is_no_time_is_refused(cli: Cli, value: str) -> None:
    done = cli("train", *QUICK, f"trainer.max_time={value}")
    assert (done.code, "trainer.max_time" in done.err) == (2, True)


def test_several_processes_look_together() -> None:
    asked: list[bool] = []

    def agree(fine: bool) -> bool:
        asked.append(fine)
        return False  # another one has had its time

    assert [passed(False, step, agree, 3) for step in (1, 2, 3)] == [False, False, True]
    assert asked == [True], "they wait for each other at every third step only"
    limit = TimeLimit(5.0, "5s")
    limit.load_state_dict({"seconds": 4.0})
    assert 4.0 <= limit.state_dict()["seconds"] < 5.0
