"""The curve of an ensemble over epochs: the vote of its members at each of their validations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit.ensemble.validations as kept
import lightkit.runner.ensemble.predictions as subject
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose, load_run
from lightkit.ensemble.combining import as_logits, as_probabilities, soft
from lightkit.loggers.events import read_events
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from lightkit.trainer import Trainer

QUICK = [
    *["data=wine", "trainer.epochs=3", "data.batch_size=16", "model.hidden=[8]", "optim.lr=0.01"],
    *["logger=quiet", "device=cpu", "metrics.figures=[]", "logger.system.enabled=false", "ensemble.size=3"],
]


def train(folder: Path, *overrides: str) -> dict[str, Any]:
    return Runner(compose([*QUICK, *overrides]).cfg, folder).run()


def curve(folder: Path) -> list[tuple[int, int, float]]:
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if "val/loss" in row]
    return [(row["step"], row["epoch"], row["val/loss"]) for row in rows]


@pytest.fixture(scope="module")
def voting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "voting"
    options = ["checkpoint.keep_last=3", "logger.tensorboard.enabled=true", "metrics.figures=[ensemble]"]
    train(folder, "ensemble=voting", "ensemble.engine=sequential", *options)
    return folder


def test_the_ensemble_has_a_point_where_its_members_have_one(voting: Path) -> None:
    *points, end = curve(voting)
    assert [(step, epoch) for step, epoch, _ in points] == [(8, 1), (16, 2), (24, 3)]
    assert end[:2] == (24, 3)
    assert (voting / "figures" / "members-over-epochs.png").exists()
    shown = set[tuple[int, str]]()
    for file in voting.glob("events.*"):
        shown |= {
            (event.step, value.tag) for _, _, event in read_events(file) if event for value in event.summary.value
        }
    assert {(8, "val/accuracy"), (16, "val/accuracy"), (24, "val/loss"), (8, "main/val/loss")} <= shown


def test_a_point_is_the_vote_of_the_checkpoints_of_its_step(voting: Path) -> None:
    found, rows, targets = [], None, None
    for name in ("00", "01", "02"):
        folder = voting / "members" / name
        runner = Runner(load_run(folder).cfg, folder)
        with runner.trained("last", ()) as learner:
            state = content.load_model_state(CheckpointStore(folder / "checkpoints").folder / "step-00000008.pt")
            content.load_model(learner.model, state)
            rows = learner.data.rows["val"]
            x, targets = learner.data.source.take(rows)
            found.append(as_probabilities(learner.model.eval()(x), "multiclass"))
    assert targets is not None
    loss = torch.nn.functional.cross_entropy(as_logits(soft(torch.stack(found)), "multiclass"), targets)
    assert curve(voting)[0][2] == pytest.approx(float(loss), abs=1e-5)


@pytest.mark.parametrize("engine", ["vectorized", pytest.param("processes", marks=pytest.mark.thorough)])
def test_it_is_the_same_whichever_engine_trains(voting: Path, tmp_path: Path, engine: str) -> None:
    train(tmp_path / "run", "ensemble=voting", f"ensemble.engine={engine}", "ensemble.slots=2")
    expected = curve(voting)
    assert [point[:2] for point in curve(tmp_path / "run")] == [point[:2] for point in expected]
    assert [point[2] for point in curve(tmp_path / "run")] == pytest.approx([p[2] for p in expected], abs=1e-5)


class Killed(Exception):
    """Ends the process, as far as a test can."""


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_after_a_kill_the_rows_are_those_of_a_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr("lightkit.runner.ensemble.group_training.SECONDS_BETWEEN_SAVES", 0.0)
    options = ["ensemble=bagging", f"ensemble.engine={engine}", "checkpoint.every_steps=5", "ensemble.vote=hard"]
    options += ["trainer.validate_every=3", "trainer.validate_unit=step"]
    train(tmp_path / "whole", *options)
    seen: list[int] = []
    end = Trainer._check_step

    def check(self: Any) -> None:
        seen.append(self.state.step)
        if len(seen) == (33 if engine == "sequential" else 14):
            raise Killed
        end(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_check_step", check)
        with pytest.raises(Killed):
            train(tmp_path / "run", *options)
    Runner(load_run(tmp_path / "run").cfg, tmp_path / "run").run(resume=True)
    assert len(curve(tmp_path / "whole")) == 9
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


def test_members_that_end_early_count_with_their_last_predictions(tmp_path: Path) -> None:
    members = "ensemble.members=[{trainer.epochs: 1}, {trainer.epochs: 4}]"
    options = ["ensemble=voting", members, "ensemble.size=null", "trainer.test=last"]
    train(tmp_path / "run", *options)
    *points, end = curve(tmp_path / "run")
    assert [epoch for _, epoch, _ in points] == [1, 2, 3, 4]
    assert points[-1][2] == pytest.approx(end[2], abs=1e-6)


@pytest.mark.parametrize("how", ["folds", "regression", "multilabel"])
def test_folds_and_other_targets_have_a_curve(tmp_path: Path, how: str) -> None:
    options = {
        "folds": ["ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2", "ensemble.size=null"],
        "regression": ["ensemble=voting", "data=diabetes", "trainer.test=last"],
        "multilabel": ["ensemble=voting", "data=breast_cancer", "trainer.test=last"],
    }[how]
    train(tmp_path / "run", *options, "ensemble.weights=validation")
    *points, end = curve(tmp_path / "run")
    assert [epoch for _, epoch, _ in points] == [1, 2, 3]
    if how != "folds":
        assert points[-1][2] == pytest.approx(end[2], rel=1e-4)


@pytest.mark.parametrize("method", ["snapshot", "gradient_boosting", "stacking"])
def test_members_that_need_others_have_no_curve_together(tmp_path: Path, method: str) -> None:
    more = ["ensemble.folds=2", "ensemble.size=1", "ensemble.meta.trainer.steps=5"] if method == "stacking" else []
    train(tmp_path / "run", f"ensemble={method}", *more)
    assert len(curve(tmp_path / "run")) == 1


def test_large_files_go_when_the_ensemble_is_combined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "KEPT_BYTES", 10)
    train(tmp_path / "run", "ensemble=voting")
    assert len(curve(tmp_path / "run")) == 4
    assert not list((tmp_path / "run").rglob("val-predictions*"))
    Runner(load_run(tmp_path / "run", ["ensemble.size=4"]).cfg, tmp_path / "run").run(resume=True)
    assert len(curve(tmp_path / "run")) == 1
    assert "no predictions of their validations are left of 00, 01, 02" in (tmp_path / "run" / "run.log").read_text()


def test_small_files_stay_for_an_ensemble_that_grows(tmp_path: Path) -> None:
    train(tmp_path / "run", "ensemble=voting", "ensemble.size=2")
    Runner(load_run(tmp_path / "run", ["ensemble.size=3"]).cfg, tmp_path / "run").run(resume=True)
    assert len(curve(tmp_path / "run")) == 4


def test_a_member_that_would_need_too_much_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 100)
    train(tmp_path / "run", "ensemble=voting", "ensemble.engine=sequential")
    assert len(curve(tmp_path / "run")) == 1
    assert "are not kept" in (tmp_path / "run" / "members" / "00" / "run.log").read_text()
