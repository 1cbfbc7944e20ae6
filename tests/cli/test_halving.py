"""Halving from the command line, with jobs that really train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lightkit.runs.reading import read_jsonl
from tests.conftest import ROOT

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


def start(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = (folder / "sweep.txt").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "lightkit", *args], cwd=folder, env=variables, stdout=log, stderr=log
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
def test_survivors_equal_uninterrupted_runs_also_after_a_kill(project: Path) -> None:
    assert start(project, *SWEEP, "hydra.sweep.dir=whole").wait() == 0, (project / "sweep.txt").read_text()
    whole = results(project / "whole")
    assert sorted(whole.values()) == [("finished", 4), ("paused", 1), ("paused", 1), ("paused", 2)]
    for name, (status, _) in whole.items():
        assert (project / "whole" / name / "checkpoints").exists() == (status == "finished")
    winner = next(name for name, (status, _) in whole.items() if status == "finished")
    assert start(project, "train", *TINY, winner, "hydra.run.dir=alone").wait() == 0
    assert rows(project / "whole" / winner) == rows(project / "alone")

    killed = start(project, *SWEEP, "hydra.sweep.dir=killed")
    while killed.poll() is None and not any(status == "paused" for status, _ in results(project / "killed").values()):
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert start(project, *SWEEP, "hydra.sweep.dir=killed").wait() == 0, (project / "sweep.txt").read_text()
    assert results(project / "killed") == whole
    assert rows(project / "killed" / winner) == rows(project / "alone")
    before = (project / "killed" / "sweep.jsonl").read_text()
    assert start(project, *SWEEP, "hydra.sweep.dir=killed").wait() == 0
    assert "started" not in (project / "killed" / "sweep.jsonl").read_text().removeprefix(before)
