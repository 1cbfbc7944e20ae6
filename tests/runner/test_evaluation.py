"""A trained model on a split: which weights, and what they reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import load_run
from lightkit.runner import Runner
from tests.runner.test_run import runner


@pytest.mark.thorough
def test_evaluation_and_prediction_agree_with_the_final_test(tmp_path: Path) -> None:
    run = runner(tmp_path / "run")
    tested = run.run()["test"]
    again = Runner(load_run(tmp_path / "run").cfg, tmp_path / "run")
    assert again.evaluate("test") == pytest.approx(tested)
    rows = again.predict("test")
    hits = sum(row["prediction"] == row["target"] for row in rows)
    assert hits / len(rows) == pytest.approx(tested["test/accuracy"])
    assert len({row["row"] for row in rows}) == len(rows) == 36


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train", "val"])
def test_every_split_can_be_evaluated(tmp_path: Path, split: str) -> None:
    runner(tmp_path / "run").run()
    values = runner(tmp_path / "run").evaluate(split, "last")
    assert f"{split}/loss" in values


def test_without_checkpoints_the_last_weights_are_tested(tmp_path: Path) -> None:
    result = runner(tmp_path / "run", "checkpoint=none").run()
    assert result["test"]
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.thorough
def test_unknown_splits_and_checkpoints_are_named(tmp_path: Path) -> None:
    runner(tmp_path / "run").run()
    with pytest.raises(UserError, match="the data has no such split"):
        runner(tmp_path / "run").evaluate("tset")
    with pytest.raises(UserError, match="no weights can be read"):
        runner(tmp_path / "run").evaluate("test", str(tmp_path / "nothing.pt"))
    with pytest.raises(UserError, match="another shape|missing"):
        runner(tmp_path / "run", "model.hidden=[9]").evaluate("test")
