"""`lightkit ensemble`: which runs are meant, and what is refused before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tests.runner.finished_runs import trained

Cli = Callable[..., Outcome]


@pytest.fixture
def runs(cli: Cli, project: Path) -> Path:
    """Two runs and a sweep of two, of which one has finished, that hold nothing but a configuration."""
    text = cli("train", "data=wine", "--cfg", "job", "--resolve").out
    day = project / "outputs" / "runs" / "2026-01-31"
    sweep = project / "outputs" / "sweeps" / "2026-01-31" / "12-00-00-run"
    for folder in (day / "12-00-00-a", day / "12-00-01-b", sweep / "seed=0", sweep / "seed=1"):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(text)
        status = "interrupted" if folder.name == "seed=1" else "finished"
        (folder / "result.json").write_text(json.dumps({"status": status}))
    return project


def test_each_run_that_is_missing_is_named(cli: Cli, runs: Path) -> None:
    one, both = cli("ensemble", "a", "nothing").err, cli("ensemble", "nothing", "nowhere").err
    assert ("'nothing'" in one, "'a'" in one, "1 problem found" in one) == (True, False, True)
    assert ("'nothing'" in both, "'nowhere'" in both, "2 problems found" in both) == (True, True, True)
    assert "choices:" in one


def test_jobs_that_have_not_finished_are_left_out_of_a_sweep(cli: Cli, runs: Path) -> None:
    assert "note: 1 of the 2 runs in outputs/sweeps" in cli("ensemble", "outputs/sweeps/2026-01-31/12-00-00-run").err


def test_a_sweep_and_a_run_become_one(cli: Cli, project: Path) -> None:
    sweep = project / "outputs" / "sweeps" / "2026-01-31" / "12-00-00-run"
    for name in ("seed=0", "seed=1"):
        trained(sweep / name, name)
    done = cli("ensemble", str(sweep), "--name", "both", "--weights", "validation", "data.eval_batch_size=7")
    assert done.code == 0, done.err
    assert "best member (0" in done.out
    assert "01-run-seed=1  0." in done.out
    assert cli("eval", "both").code == 0
