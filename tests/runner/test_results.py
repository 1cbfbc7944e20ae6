"""Metrics that give more than numbers, and metrics of texts, in whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightkit.runner.results import draw_file
from tests.conftest import Outcome

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


def test_members_with_curves_have_them_each(cli: Cli, project: Path) -> None:
    ensemble = ("ensemble=voting", "ensemble.size=2", "hydra.run.dir=run")
    done = cli("train", *SMALL, *SHAPED[:2], *ensemble)
    assert done.code == 0, done.err
    assert "one after the other: metrics.val.curve is for one model at a time" in done.out + done.err
    assert len([*(project / "run" / "members").glob("*/figures/val/curve.npz")]) == 2


def test_texts_of_a_task_reach_the_metrics_also_after_a_resume(cli: Cli, project: Path) -> None:
    (project / "speaking.py").write_text(SPEAKING)
    text = "_target_: torchmetrics.text"
    metrics = [f"~metrics.{split}.accuracy" for split in ("train", "val", "test")]
    metrics += [f"~metrics.{name}" for name in ("val.f1", "test.f1", "test.precision", "test.recall", "test.auroc")]
    metrics += [f"+metrics.{split}.wer={{{text}.WordErrorRate}}" for split in ("train", "val", "test")]
    metrics += [f"+metrics.val.bleu={{{text}.BLEUScore, n_gram: 1}}"]
    args = [
        *SMALL,
        *metrics,
        "metrics.monitor=val/wer",
        "trainer.task._target_=speaking.Speaking",
        "data.batch_size=16",
    ]
    straight = cli("train", *args, "hydra.run.dir=one")
    assert straight.code == 0, straight.err
    paused = cli("train", *args, "hydra.run.dir=two", "trainer.stop_at=3 steps")
    assert paused.code == 0, paused.err
    resumed = cli("resume", "two", "trainer.stop_at=null")
    assert resumed.code == 0, resumed.err
    values = [
        [
            (row["step"], row[name])
            for row in rows(project / run)
            for name in ("train/wer", "val/wer", "val/bleu")
            if name in row
        ]
        for run in ("one", "two")
    ]
    assert values[0] == values[1]
    assert len(values[0]) == 6
    predicted = cli("predict", "one", "--output", "-")
    assert {line.rpartition(",")[2] for line in predicted.out.splitlines()[1:]} <= {
        "red wine",
        "a white wine",
        "some rose",
    }


def test_a_file_that_is_damaged_is_not_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "roc.npz").write_bytes(b"PK nothing")
    assert draw_file(tmp_path / "roc.npz") is None
    assert "cannot be drawn" in caplog.text
