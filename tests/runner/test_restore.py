"""A checkpoint in a run whose configuration has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import load_run
from lightkit.runner import Runner
from tests.runner.test_run import runner


@pytest.mark.thorough
def test_a_longer_run_goes_on_from_the_last_one(tmp_path: Path) -> None:
    runner(tmp_path / "run").run()
    longer = load_run(tmp_path / "run", ["trainer.epochs=5"])
    assert Runner(longer.cfg, tmp_path / "run").run(resume=True)["epochs"] == 5
    assert "nothing is left to train" not in (tmp_path / "run" / "run.log").read_text()
    shorter = load_run(tmp_path / "run", ["trainer.epochs=2"])
    assert Runner(shorter.cfg, tmp_path / "run").run(resume=True)["epochs"] == 5
    assert "nothing is left to train" in (tmp_path / "run" / "run.log").read_text()
