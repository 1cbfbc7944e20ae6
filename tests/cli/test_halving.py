"""Halving from the command line, with jobs that really train."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.runs.reading import read_jsonl
from tests.conftest import Outcome
from tests.waiting import until
from tests.warm import Warm

TINY = (
    *("data=wine", "device=cpu", "model.hidden=[4]", "logger=quiet", "logger.tensorboard.enabled=false"),
    *("trainer.epochs=4", "metrics.monitor=val/loss", "metrics.mode=min", "device.threads=1"),
)
SWEEP = (
    "train",
    "-m",
    *TINY,
    "optim.lr=0.001,0.003,0.01,0.03",
    "sweep.halving.rungs=[1,2]",
    "sweep.halving.eta=2",
    "sweep.slots=2",
)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not name.startswith(("speed/", "system/", "time"))}
        for row in read_jsonl(folder / "metrics.jsonl")
    ]


def results(folder: Path) -> dict[str, tuple[str, int]]:
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/result.json"))}
    return {name: (result["status"], result["epochs"]) for name, result in found.items()}


@pytest.mark.thorough
@pytest.mark.slow
def test_survivors_equal_uninterrupted_runs_also_after_a_kill(
    process: Callable[..., Outcome], project: Path, warm: Warm
) -> None:
    def run(*args: str) -> None:
        done = process(*args)
        assert done.code == 0, done.err

    run(*SWEEP, "hydra.sweep.dir=whole")
    whole = results(project / "whole")
    assert sorted(whole.values()) == [("finished", 4), ("paused", 1), ("paused", 1), ("paused", 2)]
    for name, (status, _) in whole.items():
        assert (project / "whole" / name / "checkpoints").exists() == (status == "finished")
    winner = next(name for name, (status, _) in whole.items() if status == "finished")
    run("train", *TINY, winner, "hydra.run.dir=alone")
    assert rows(project / "whole" / winner) == rows(project / "alone")

    with (project / "sweep.txt").open("w+") as log:
        killed = warm.start([*SWEEP, "hydra.sweep.dir=killed"], project, [log.fileno()] * 3)
    until(lambda: "paused" in {status for status, _ in results(project / "killed").values()}, "a job that has paused")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    run(*SWEEP, "hydra.sweep.dir=killed")
    assert results(project / "killed") == whole
    assert rows(project / "killed" / winner) == rows(project / "alone")
    before = (project / "killed" / "sweep.jsonl").read_text()
    run(*SWEEP, "hydra.sweep.dir=killed")
    assert "started" not in (project / "killed" / "sweep.jsonl").read_text().removeprefix(before)
