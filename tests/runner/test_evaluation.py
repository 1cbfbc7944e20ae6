"""A trained model on a split: which weights, and what they reach."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lightkit.cli import main
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.loggers.files import read_jsonl
from lightkit.runner import Runner
from tests.runner.test_run import QUICK, runner


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
    which = "best" if ensemble else "last"  # an ensemble has one file
    losses = [runner(folder, *options, size).evaluate("val", which)["val/loss"] for size in sizes]
    assert losses == pytest.approx([losses[-1]] * 4, rel=1e-6)
    one = folder / "members" / "00" if ensemble else folder
    logged = [row["val/loss"] for row in read_jsonl(one / "metrics.jsonl") if "val/loss" in row]
    again = Runner(load_run(one, ["data.eval_batch_size=64"]).cfg, one).evaluate("val", "last")
    assert logged[-1] == pytest.approx(again["val/loss"], rel=1e-6)


def test_new_images_are_all_predicted_with_the_classes_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image")
    for folder, names, count in (("old", "ab", 10), ("new", "b", 7)):
        for name in names:
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(count):
                image.new("L", (4, 4), 200 if name == "b" else number).save(tmp_path / folder / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTKIT_PROJECT", str(tmp_path))
    options = [f"data.dataset.root={tmp_path / 'old'}", "data.dataset.size=4", "data.num_workers=0", "trainer.epochs=1"]
    texts = ["data=image_folder", *options, "model=mlp", "model.hidden=[4]", *QUICK[3:]]
    Runner(compose(texts).cfg, tmp_path / "run", overrides=texts).run()
    for split in ("test_root", "root"):
        assert main(["predict", "run", f"data.dataset.{split}={tmp_path / 'new'}", "--output", f"{split}.csv"]) == (
            0 if split == "test_root" else 2
        )
    rows = list(csv.DictReader((tmp_path / "test_root.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == [f"{tmp_path}/new/b/{number}.png" for number in range(7)]
    assert {row["target"] for row in rows} == {"b"}
    assert "p(a)" in rows[0]
    told = capsys.readouterr().err
    assert "data.dataset.root is not that of the run" in told
    assert f"data.dataset.test_root={tmp_path}/new takes all of them" in told
    for command, split in (("predict", "val"), ("eval", "train")):  # which would be drawn anew, from what was learnt
        assert main([command, "run", f"data.dataset.test_root={tmp_path / 'new'}", "--split", split]) == 2
        assert f"so {split} is not that of the run" in capsys.readouterr().err
