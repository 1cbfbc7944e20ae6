"""The curve of an ensemble over epochs: the vote of its members at each of their validations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit.runner.ensemble.predictions as subject
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose, load_run
from lightkit.ensemble.combining import as_logits, as_probabilities, soft
from lightkit.ensemble.validations import Validation, ValidationOutputs, of_member, read_validations, write_validations
from lightkit.loggers.events import read_events
from lightkit.runner import Runner
from lightkit.runs.reading import read_jsonl
from lightkit.trainer import Trainer
from lightkit.trainer.state import Timetable

QUICK = [
    *["data=wine", "trainer.epochs=3", "data.batch_size=16", "model.hidden=[8]", "optim.lr=0.01", "ensemble=voting"],
    *["logger=quiet", "device=cpu", "metrics.figures=[]", "logger.system.enabled=false", "ensemble.size=2"],
]


def train(folder: Path, *overrides: str) -> dict[str, Any]:
    return Runner(compose([*QUICK, *overrides]).cfg, folder).run()


def curve(folder: Path) -> list[tuple[int, int, float]]:
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if "val/loss" in row]
    return [(row["step"], row["epoch"], row["val/loss"]) for row in rows]


@pytest.fixture(scope="module")
def voting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "voting"
    train(folder, "ensemble.engine=sequential", "checkpoint.keep_last=3")
    return folder


@pytest.mark.thorough(first=0)
def test_the_ensemble_has_a_point_where_its_members_have_one(tmp_path: Path) -> None:
    voting = tmp_path / "voting"
    train(voting, "ensemble.engine=sequential", "logger.tensorboard.enabled=true", "metrics.figures=[ensemble]")
    *points, end = curve(voting)
    assert [(step, epoch) for step, epoch, _ in points] == [(8, 1), (16, 2), (24, 3)]
    assert end[:2] == (24, 3)
    assert (voting / "figures" / "members-over-epochs.png").exists()
    events = [event for file in voting.glob("events.*") for _, _, event in read_events(file) if event]
    shown = {(event.step, value.tag) for event in events for value in event.summary.value}
    assert {(8, "val/accuracy"), (16, "val/accuracy"), (24, "val/loss"), (8, "main/val/loss")} <= shown


def test_a_point_is_the_vote_of_the_checkpoints_of_its_step(voting: Path) -> None:
    members, targets = [], None
    for name in ("00", "01"):
        folder = voting / "members" / name
        runner = Runner(load_run(folder).cfg, folder)
        with runner.trained("last", ()) as learner:
            state = content.load_model_state(CheckpointStore(folder / "checkpoints").folder / "step-00000008.pt")
            content.load_model(learner.model, state)
            x, targets = learner.data.source.take(learner.data.rows["val"])
            members.append(as_probabilities(learner.model.eval()(x), "multiclass"))
    assert targets is not None
    loss = torch.nn.functional.cross_entropy(as_logits(soft(torch.stack(members)), "multiclass"), targets)
    assert curve(voting)[0][2] == pytest.approx(float(loss), abs=1e-5)


class Killed(Exception):
    """Ends the process, as far as a test can."""


@pytest.mark.thorough
@pytest.mark.parametrize(("engine", "moment"), [("vectorized", 14), ("sequential", 23)])
def test_after_a_kill_the_rows_are_those_of_a_run_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, moment: int
) -> None:
    monkeypatch.setattr("lightkit.runner.ensemble.group_training.SECONDS_BETWEEN_SAVES", 0.0)
    options = ["ensemble=bagging", f"ensemble.engine={engine}", "checkpoint.every_steps=5", "ensemble.vote=hard"]
    options += ["trainer.validate_every=3", "trainer.validate_unit=step", "trainer.epochs=2"]
    train(tmp_path / "whole", *options)
    seen: list[int] = []
    end = Trainer._check_step

    def check(self: Any) -> None:
        seen.append(self.state.step)
        if len(seen) == moment:
            raise Killed
        end(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_check_step", check)
        with pytest.raises(Killed):
            train(tmp_path / "run", *options)
    Runner(load_run(tmp_path / "run").cfg, tmp_path / "run").run(resume=True)
    assert len(curve(tmp_path / "whole")) == 7
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


@pytest.mark.thorough(first=0)
def test_it_is_the_same_whichever_engine_trains_and_goes_with_large_files(
    voting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "KEPT_BYTES", 10)
    train(tmp_path / "run", "ensemble.engine=vectorized")
    expected = curve(voting)
    assert [point[:2] for point in curve(tmp_path / "run")] == [point[:2] for point in expected]
    assert [point[2] for point in curve(tmp_path / "run")] == pytest.approx([p[2] for p in expected], abs=1e-5)
    assert not list((tmp_path / "run").rglob("val-predictions*"))
    Runner(load_run(tmp_path / "run", ["ensemble.size=3"]).cfg, tmp_path / "run").run(resume=True)
    assert len(curve(tmp_path / "run")) == 1
    assert "no predictions of their validations are left of 00, 01" in (tmp_path / "run" / "run.log").read_text()


def test_members_that_end_early_count_with_their_last_predictions(tmp_path: Path) -> None:
    members = "ensemble.members=[{trainer.epochs: 1}, {trainer.epochs: 3}]"
    train(tmp_path / "run", members, "ensemble.size=null", "trainer.test=last")
    *points, end = curve(tmp_path / "run")
    assert [epoch for _, epoch, _ in points] == [1, 2, 3]
    assert points[-1][2] == pytest.approx(end[2], abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        ["data=diabetes", "trainer.test=last"],
        ["ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2", "ensemble.size=null"],
        pytest.param(["data=breast_cancer", "trainer.test=last"], marks=pytest.mark.thorough),
    ],
    ids=["regression", "folds", "multilabel"],
)
def test_folds_and_other_targets_have_a_curve(tmp_path: Path, options: list[str]) -> None:
    train(tmp_path / "run", *options, "ensemble.weights=validation")
    *points, end = curve(tmp_path / "run")
    assert [epoch for _, epoch, _ in points] == [1, 2, 3]
    if "trainer.test=last" in options:
        assert points[-1][2] == pytest.approx(end[2], rel=1e-4)


TABLE = Timetable(epoch_samples=20, batch_size=5, epochs=3)
LOSS = torch.zeros(())


def validate(kept: ValidationOutputs, step: int, *parts: torch.Tensor) -> None:
    kept.reset()
    for part in parts:
        kept.update(part, None, LOSS, len(part))
    kept.validated(step, step / 4)


def test_batches_of_a_validation_become_one_record(tmp_path: Path) -> None:
    kept, outputs = ValidationOutputs(tmp_path / "file", TABLE), torch.randn(7, 3)
    validate(kept, 4, outputs[:5].bfloat16(), outputs[5:].bfloat16())
    validate(kept, 8, outputs[:5], outputs[5:])
    first, second = read_validations(tmp_path / "file")
    assert (first.step, first.epoch, second.step) == (4, 1.0, 8)
    assert first.outputs.equal(outputs.bfloat16().float())
    assert second.outputs.equal(outputs)


def test_what_is_torn_or_repeated_does_not_count(tmp_path: Path) -> None:
    path, kept = tmp_path / "file", ValidationOutputs(tmp_path / "file", TABLE)
    for step in (4, 8, 4):
        validate(kept, step, torch.full((2, 2), float(step)))
    validate(kept, 8, torch.ones(2, 2))
    whole = path.read_bytes()
    assert [float(record.outputs[0, 0]) for record in read_validations(path)] == [4.0, 1.0]
    for cut in range(1, 40):
        path.write_bytes(whole[:-cut])
        assert [float(record.outputs[0, 0]) for record in read_validations(path)] == [4.0, 8.0]
    kept.start(4)
    assert [record.step for record in read_validations(path)] == [4]
    kept.start(0)
    assert not path.exists()


def test_members_that_train_at_once_get_their_own(tmp_path: Path) -> None:
    names, path = ["a", "b"], tmp_path / "file"
    kept = ValidationOutputs(path, TABLE, names=lambda: names)
    outputs = torch.randn(2, 7, 3)
    validate(kept, 4, outputs[:, :5], outputs[:, 5:])
    names = ["b"]
    validate(kept, 8, outputs[:1])
    records = read_validations(path)
    assert [record.outputs.shape for record in of_member(records, "a")] == [(7, 3)]
    first, second = of_member(records, "b")
    assert first.outputs.equal(outputs[1])
    assert second.outputs.equal(outputs[0])
    write_validations(tmp_path / "b", [first, second])
    assert [record.step for record in read_validations(tmp_path / "b")] == [4, 8]


def test_nothing_is_kept_where_it_would_be_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    kept = ValidationOutputs(tmp_path / "file", TABLE, tell=told.append)
    monkeypatch.setattr("lightkit.ensemble.validations.MOST_BYTES", 3 * 4 * 6)
    validate(kept, 4, torch.zeros(3, 2))
    assert len(read_validations(tmp_path / "file")) == 1
    validate(kept, 8, torch.zeros(3, 2), torch.zeros(1, 2))
    validate(kept, 12, torch.zeros(3, 2))
    assert not (tmp_path / "file").exists()
    assert len(told) == 1


def test_without_outputs_there_is_no_file(tmp_path: Path) -> None:
    kept = ValidationOutputs(tmp_path / "file", TABLE)
    kept.update(None, None, LOSS, 3)
    kept.validated(4, 1.0)
    write_validations(tmp_path / "other", list[Validation]())
    assert not list(tmp_path.iterdir())
