"""A trained model on a split: which weights, and what they reach."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lightkit.cli import main
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.evaluation import draw_file
from lightkit.runner.fit import Observer
from lightkit.runs.reading import read_jsonl
from lightkit.trainer.learner import Learner
from tests.conftest import Outcome
from tests.runner.test_run import QUICK, runner


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation") / "run"
    runner(folder).run()
    return folder


def test_evaluation_and_prediction_agree_with_the_final_test(finished: Path, tmp_path: Path) -> None:
    tested = json.loads((finished / "result.json").read_text())["test"]
    again = Runner(load_run(finished).cfg, finished)
    assert again.evaluate("test") == pytest.approx(tested)
    rows = again.predict("test")
    hits = sum(row["prediction"] == row["target"] for row in rows)
    assert hits / len(rows) == pytest.approx(tested["test/accuracy"])
    assert len({row["row"] for row in rows}) == len(rows) == 36
    for split, values in again.evaluate_splits(["train", "val"], "last").items():
        assert f"{split}/loss" in values
    with pytest.raises(UserError, match="the data has no such split"):
        again.evaluate("tset")
    with pytest.raises(UserError, match="no weights can be read"):
        again.evaluate("test", str(tmp_path / "nothing.pt"))
    with pytest.raises(UserError, match="another shape|missing"):
        runner(finished, "model.hidden=[9]").evaluate("test")


def test_a_run_says_why_it_ended_and_that_only_a_part_was_evaluated(cli: Callable[..., Outcome]) -> None:
    few = (
        "data.split.val_limit=9",
        "data.split.test_limit=1000",
        "logger=default",
        "trainer.early_stopping.target=0.1",
    )
    out = cli("train", *QUICK, *few, "trainer.swa.from_epoch=99").out
    assert "trainer.swa.from_epoch=99: there are 3 whole epochs, and averaging begins in the last" in out
    assert out.count("only a part of val is evaluated: 9 rows (data.split.val_limit)") == 2, out
    assert "only a part of test" not in out, "it has fewer rows than that"
    assert "ended   early stopping: val/accuracy is" in out
    assert "val: 9 rows at most (data.split.val_limit)" in cli("eval", "last", "--split", "val").out
    assert "only a part of val is evaluated" in cli("train", *QUICK, *few, "ensemble=voting", "ensemble.size=2").out


@pytest.mark.thorough
@pytest.mark.parametrize("ensemble", [(), ("ensemble=voting", "ensemble.size=2", "ensemble.engine=vectorized")])
def test_losses_with_class_weights_do_not_depend_on_the_batch_size(tmp_path: Path, ensemble: tuple[str, ...]) -> None:
    folder, options = tmp_path / "run", ("loss.weight=[1,5,20]", "trainer.epochs=1", *ensemble)
    runner(folder, *options, "data.eval_batch_size=7").run()
    sizes = [f"data.eval_batch_size={size}" for size in (1, 64)]
    which = "best" if ensemble else "last"  # an ensemble has one file
    losses = [runner(folder, *options, size).evaluate("val", which)["val/loss"] for size in sizes]
    assert losses == pytest.approx([losses[-1]] * 2, rel=1e-6)
    one = folder / "members" / "00" if ensemble else folder
    logged = [row["val/loss"] for row in read_jsonl(one / "metrics.jsonl") if "val/loss" in row]
    again = Runner(load_run(one, ["data.eval_batch_size=64"]).cfg, one).evaluate("val", "last")
    assert logged[-1] == pytest.approx(again["val/loss"], rel=1e-6)


@pytest.mark.thorough(first=0)
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
        code = main(["predict", "run", f"data.dataset.{split}={tmp_path / 'new'}", "--output", f"{split}.csv"])
        assert code == (0 if split == "test_root" else 2)
    rows = list(csv.DictReader((tmp_path / "test_root.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == [f"{tmp_path}/new/b/{number}.png" for number in range(7)]
    assert {row["target"] for row in rows} == {"b"}
    assert "p(a)" in rows[0]
    err = capsys.readouterr().err
    assert "data.dataset.root is not that of the run" in err
    assert f"data.dataset.test_root={tmp_path}/new takes all of them" in err
    for command, split in (("predict", "val"), ("eval", "train")):  # which would be drawn anew, from what was learnt
        assert main([command, "run", f"data.dataset.test_root={tmp_path / 'new'}", "--split", split]) == 2
        assert f"so {split} is not that of the run" in capsys.readouterr().err


Cli = Callable[..., Outcome]
SMALL = ("data=wine", "model=mlp", "model.hidden=[8]", "trainer.epochs=2", "metrics.figures=[]")
_OF = "_target_: torchmetrics.classification"
SHAPED = (
    f"metrics.val.at={{{_OF}.MulticlassRecallAtFixedPrecision, min_precision: 0.5}}",
    f"metrics.val.curve={{{_OF}.MulticlassROC}}",
    f"metrics.test.matrix={{{_OF}.MulticlassConfusionMatrix}}",
    f"metrics.train.pr={{{_OF}.MulticlassPrecisionRecallCurve, thresholds: 5}}",
)
SPEAKING = """
from lightkit.trainer import StepOutput
from lightkit.trainer.tasks import Supervised

NAMES = ["red wine", "a white wine", "some rose"]

class Speaking(Supervised):
    def step(self, model, batch, criterion):
        output = super().step(model, batch, criterion)
        say = lambda labels: [NAMES[label] for label in labels.tolist()]
        return StepOutput(output.loss, say(output.preds.argmax(1)), say(output.target))
"""


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough(first=0)
def test_curves_and_matrices_are_files_and_figures_of_the_run(cli: Cli, project: Path) -> None:
    done = cli("train", *SMALL, *SHAPED, "hydra.run.dir=run")
    assert done.code == 0, done.err
    names = {name for row in rows(project / "run") for name in row}
    assert {"val/at/class_0", "val/at_threshold/class_0"} <= names
    figures = project / "run" / "figures"
    for file in ("val/curve", "test/matrix", "train/pr"):
        assert (figures / f"{file}.png").stat().st_size > 1000
    with np.load(figures / "test" / "matrix.npz", allow_pickle=False) as file:
        assert file["value"].shape == (3, 3)
    with np.load(figures / "val" / "curve.npz", allow_pickle=False) as file:
        assert sorted(name for name in file if "/" in name)[0].startswith("fpr/")
    assert "metrics.val.curve is no number: see" in (project / "run" / "run.log").read_text()
    assert "figures/eval-val/curve.npz" in cli("eval", "run", "--split", "val").out


@pytest.mark.thorough
def test_texts_of_a_task_reach_the_metrics_also_after_a_resume(cli: Cli, project: Path) -> None:
    (project / "speaking.py").write_text(SPEAKING)
    text = "_target_: torchmetrics.text"
    metrics = [f"~metrics.{split}.accuracy" for split in ("train", "val", "test")]
    metrics += [f"~metrics.{name}" for name in ("val.f1", "test.f1", "test.precision", "test.recall", "test.auroc")]
    metrics += [f"+metrics.{split}.wer={{{text}.WordErrorRate}}" for split in ("train", "val", "test")]
    metrics += [f"+metrics.val.bleu={{{text}.BLEUScore, n_gram: 1}}"]
    task = "trainer.task._target_=speaking.Speaking"
    args = [*SMALL, *metrics, "metrics.monitor=val/wer", task, "data.batch_size=16"]
    straight = cli("train", *args, "hydra.run.dir=one")
    assert straight.code == 0, straight.err
    paused = cli("train", *args, "hydra.run.dir=two", "trainer.stop_at=3 steps")
    assert paused.code == 0, paused.err
    resumed = cli("resume", "two", "trainer.stop_at=null")
    assert resumed.code == 0, resumed.err
    names = ("train/wer", "val/wer", "val/bleu")
    values = [
        [(row["step"], row[name]) for row in rows(project / run) for name in names if name in row]
        for run in ("one", "two")
    ]
    assert values[0] == values[1]
    assert len(values[0]) == 6
    predicted = cli("predict", "one", "--output", "-")
    said = {line.rpartition(",")[2] for line in predicted.out.splitlines()[1:]}
    assert said <= {"red wine", "a white wine", "some rose"}


def test_a_file_that_is_damaged_is_not_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "roc.npz").write_bytes(b"PK nothing")
    assert draw_file(tmp_path / "roc.npz") is None
    assert "cannot be drawn" in caplog.text


class Damaging(Observer):
    """Flips a bit of the checkpoint of the last step, which is the best, once it is on the disk."""

    @contextmanager
    def saving(self, learner: Learner) -> Iterator[None]:
        yield
        if learner.state.step == learner.timetable.total_steps:
            assert learner.store is not None
            best = learner.store.best()
            assert best is not None
            content = bytearray(best.read_bytes())
            content[len(content) // 2] ^= 1
            best.write_bytes(content)


def test_a_checkpoint_of_the_last_step_that_is_damaged_is_noticed_where_its_weights_are_tested(tmp_path: Path) -> None:
    cfg = compose([*QUICK, "metrics.monitor=val/loss", "checkpoint.asynchronous=false", "optim.lr=0.001"]).cfg
    with pytest.raises(UserError, match="this checkpoint cannot be read: the checksum differs"):
        Runner(cfg, tmp_path / "run", observer=Damaging()).run()
    result = Runner(cfg, tmp_path / "whole").run()
    assert result["objective"]["step"] == result["steps"], "the last was the best"
