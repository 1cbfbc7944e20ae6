"""Trained ensembles in the place of a model: measured, asked for predictions, written and learnt from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightkit.assembly import build
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.ensemble.module import Ensemble
from lightkit.runner import Runner
from lightkit.runner.models import ensemble_model
from lightkit.trainer.tasks import Distillation
from tests.runner.test_run import QUICK, runner

FEW = ("trainer.epochs=1", "logger.tensorboard.enabled=false", "ensemble.size=2")
VOTING = (*FEW, "ensemble=voting", "ensemble.weights=validation")
KINDS = {
    "vote": VOTING,
    "fold": (*FEW[:2], "ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2"),
    "boost": (*FEW, "ensemble=gradient_boosting", "ensemble.patience=null"),
    "cycle": (*FEW, "ensemble=snapshot", "trainer.epochs=2"),
    "fuse": (*FEW, "ensemble=fusion"),
}


@pytest.fixture(scope="module")
def voting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "vote"
    runner(folder, *VOTING).run()
    return folder


def reopened(folder: Path, *overrides: str) -> Runner:
    return Runner(load_run(folder, overrides).cfg, folder)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def own_members(folder: Path) -> list[Path]:
    return sorted((folder / "members").iterdir())


def test_the_file_gives_what_the_run_ended_with(voting: Path) -> None:
    measured = reopened(voting).evaluate_splits(["val", "test"])
    ended = result(voting)["metrics"]
    for values in measured.values():
        assert values == pytest.approx({name: ended[name] for name in values}, abs=1e-5)


def test_one_member_is_what_its_own_run_is(voting: Path) -> None:
    asked = reopened(voting)
    for folder in own_members(voting):
        assert asked.evaluate(members=[folder.name]) == pytest.approx(reopened(folder).evaluate(), abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vote"])
def test_members_of_every_kind_are_runs(kind: str, tmp_path: Path) -> None:
    runner(tmp_path / "run", *KINDS[kind]).run()
    whole = reopened(tmp_path / "run").evaluate("test")
    assert whole == pytest.approx(result(tmp_path / "run")["test"], abs=1e-5)
    for folder in own_members(tmp_path / "run"):
        assert reopened(folder).evaluate("test") == pytest.approx(result(folder)["test"], abs=1e-6)
        assert len(reopened(folder).predict("val")) == 18


def test_predictions_say_how_sure_it_is(voting: Path) -> None:
    row = reopened(voting).predict("test")[0]
    assert list(row)[-3:] == ["entropy", "mutual_information", "disagreement"]
    assert 0 <= row["mutual_information"] <= row["entropy"]
    assert "entropy" not in reopened(voting).predict("test", members=["00"])[0]
    assert "entropy" not in reopened(own_members(voting)[0]).predict("test")[0]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"checkpoint": "last"}, "--checkpoint: an ensemble has no checkpoints to choose from"),
        ({"members": ["07"]}, "--members: no such member"),
    ],
)
def test_what_an_ensemble_lacks(voting: Path, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        reopened(voting).evaluate(**asked)


def test_one_model_has_no_members(voting: Path) -> None:
    with pytest.raises(UserError, match="only an ensemble has members"):
        reopened(own_members(voting)[0]).evaluate(members=["00"])


def test_an_ensemble_that_is_not_complete(voting: Path, tmp_path: Path) -> None:
    place = tmp_path / "part"
    shutil.copytree(voting, place, ignore=shutil.ignore_patterns("ensemble.safetensors"))
    with pytest.raises(UserError, match="the ensemble is not complete") as caught:
        reopened(place).evaluate()
    assert "lightkit resume" in str(caught.value)


@pytest.mark.parametrize("precision", ["bf16", "bf16-true", "fp64"])
def test_other_precisions(voting: Path, precision: str) -> None:
    found = reopened(voting, f"device.precision={precision}").evaluate()
    assert found["test/loss"] == pytest.approx(result(voting)["test"]["test/loss"], abs=0.02)


def test_as_one_module(voting: Path, tmp_path: Path) -> None:
    model = ensemble_model(load_run(voting).cfg, voting)
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.rand(4, 13)
    assert torch.equal(model(x), again(x))
    assert model(x).exp().sum(1).tolist() == pytest.approx([1] * 4, abs=1e-6)


def test_its_weights_are_not_those_of_one_network(voting: Path) -> None:
    with pytest.raises(UserError, match="run of an ensemble") as caught:
        read_weights(voting)
    assert f"{voting}/members/NAME" in str(caught.value)
    with pytest.raises(UserError, match="run of an ensemble"):
        build(compose([*QUICK, f"finetune.weights.path={voting}"]).cfg, voting / "other")


def test_a_teacher(voting: Path, tmp_path: Path) -> None:
    learner = build(compose([*QUICK, f"finetune.distill.teacher={voting}"]).cfg, tmp_path / "student")
    assert isinstance(learner.task, Distillation)
    assert isinstance(learner.task.teacher, Ensemble)
    assert len(learner.task.teacher) == 2


@pytest.mark.parametrize(
    ("data", "told"), [("diabetes", "another kind of target"), ("digits", "the ensemble has learnt other classes")]
)
def test_a_teacher_of_something_else(voting: Path, tmp_path: Path, data: str, told: str) -> None:
    cfg = compose([*QUICK, f"data={data}", f"finetune.distill.teacher={voting}"]).cfg
    with pytest.raises(UserError, match=f"finetune.distill.teacher: .*{told}"):
        build(cfg, tmp_path / "student")


@pytest.mark.thorough
@pytest.mark.parametrize("data", ["breast_cancer", "diabetes", "digits_multilabel"])
def test_a_student_is_taught_in_every_task(data: str, tmp_path: Path) -> None:
    texts = [*QUICK, f"data={data}", *FEW[:2]]
    Runner(compose([*texts, *VOTING]).cfg, tmp_path / "vote").run()
    done = Runner(compose([*texts, f"finetune.distill.teacher={tmp_path / 'vote'}"]).cfg, tmp_path / "student").run()
    assert done["status"] == "finished"
    row = reopened(tmp_path / "vote").predict("test")[0]
    assert ("std" in row) == (data == "diabetes")


def test_members_tuned_from_one_base_store_it_once(tmp_path: Path) -> None:
    wide = ("model.hidden=[64,64]",)
    runner(tmp_path / "base", *FEW[:2], *wide).run()
    runner(tmp_path / "tuned", *VOTING, *wide, "finetune=lora", f"finetune.weights.path={tmp_path / 'base'}").run()
    tensors = load_file(tmp_path / "tuned" / "ensemble.safetensors")
    assert sum(tensor.shape == (64, 64) for tensor in tensors.values()) == 1
    assert sum("lora_A" in name for name in tensors) == 4
    ended = result(tmp_path / "tuned")["test"]
    assert reopened(tmp_path / "tuned").evaluate() == pytest.approx(ended, abs=1e-5)


@pytest.mark.parametrize("more", [["finetune=lora"], ["finetune.head.replace=always"], ["finetune=head"]])
def test_networks_trained_as_one_are_not_tuned(tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(UserError, match="the networks of this ensemble are trained as one"):
        runner(tmp_path / "run", *KINDS["fuse"], *more).run()
    assert not (tmp_path / "run").exists()
