"""A trained model on a split: which weights, and what they reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import load_run
from lightkit.loggers.files import read_jsonl
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


@pytest.mark.parametrize("ensemble", [(), ("ensemble=voting", "ensemble.size=2", "ensemble.engine=vectorized")])
def test_losses_with_class_weights_do_not_depend_on_the_batch_size(tmp_path: Path, ensemble: tuple[str, ...]) -> None:
    folder, options = tmp_path / "run", ("loss.weight=[1,5,20]", "trainer.epochs=1", *ensemble)
    runner(folder, *options, "data.eval_batch_size=7").run()
    sizes = [f"data.eval_batch_size={size}" for size in (1, 7, 64, 1000)]
    losses = [runner(folder, *options, size).evaluate("val", "last")["val/loss"] for size in sizes]
    assert losses == pytest.approx([losses[-1]] * 4, rel=1e-6)
    one = folder / "members" / "00" if ensemble else folder
    logged = [row["val/loss"] for row in read_jsonl(one / "metrics.jsonl") if "val/loss" in row]
    again = Runner(load_run(one, ["data.eval_batch_size=64"]).cfg, one).evaluate("val", "last")
    assert logged[-1] == pytest.approx(again["val/loss"], rel=1e-6)
