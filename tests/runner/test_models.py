"""Trained ensembles in the place of a model: measured, asked for predictions, written and learnt from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_diabetes, load_wine

import lightkit
from lightkit.assembly import build
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.ensemble.module import Ensemble
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner import Runner
from lightkit.runner.models import ensemble_model
from lightkit.trainer.tasks import Distillation
from tests.runner.test_run import QUICK, runner

FEW = ("trainer.epochs=1", "logger.tensorboard.enabled=false", "ensemble.size=2")
VOTING = (*FEW, "ensemble=voting", "ensemble.weights=validation")


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
    whole, (first, second) = reopened(voting), own_members(voting)
    for folder in (first, second):
        assert whole.evaluate(members=[folder.name]) == pytest.approx(reopened(folder).evaluate(), abs=1e-5)
    with pytest.raises(UserError, match="--checkpoint: an ensemble has no checkpoints to choose from"):
        whole.evaluate(checkpoint="last")
    with pytest.raises(UserError, match="--members: no such member"):
        whole.evaluate(members=["07"])
    with pytest.raises(UserError, match="only an ensemble has members"):
        reopened(first).evaluate(members=["00"])


def test_an_ensemble_that_is_not_complete(voting: Path, tmp_path: Path) -> None:
    place = shutil.copytree(voting, tmp_path / "part", ignore=shutil.ignore_patterns("ensemble.safetensors"))
    with pytest.raises(UserError, match=r"the ensemble is not complete[\s\S]*lightkit resume"):
        reopened(place).evaluate()


KINDS = {
    "fold": (*FEW[:2], "ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2"),
    "boost": (*FEW, "ensemble=gradient_boosting", "ensemble.patience=null"),
    "cycle": (*FEW, "ensemble=snapshot", "trainer.epochs=2"),
    "fuse": (*FEW, "ensemble=fusion"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_members_of_every_kind_are_runs(kind: str, tmp_path: Path) -> None:
    runner(tmp_path / "run", *KINDS[kind]).run()
    assert reopened(tmp_path / "run").evaluate() == pytest.approx(result(tmp_path / "run")["test"], abs=1e-5)
    for folder in own_members(tmp_path / "run"):
        assert reopened(folder).evaluate("test") == pytest.approx(result(folder)["test"], abs=1e-6)
        assert len(reopened(folder).predict("val")) == 18


def test_predictions_say_how_sure_it_is(voting: Path) -> None:
    row = reopened(voting).predict("test")[0]
    assert list(row)[-3:] == ["entropy", "mutual_information", "disagreement"]
    assert 0 <= row["mutual_information"] <= row["entropy"]
    assert "entropy" not in reopened(voting).predict("test", members=["00"])[0]
    assert "entropy" not in reopened(own_members(voting)[0]).predict("test")[0]


def test_another_precision(voting: Path) -> None:
    measured = reopened(voting, "device.precision=bf16-true").evaluate()
    assert measured["test/loss"] == pytest.approx(result(voting)["test"]["test/loss"], abs=0.02)


def test_as_one_module(voting: Path, tmp_path: Path) -> None:
    model = ensemble_model(load_run(voting).cfg, voting)
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.rand(4, 13)
    assert torch.equal(model(x), again(x))
    assert model(x).exp().sum(1).tolist() == pytest.approx([1] * 4, abs=1e-6)


def test_its_weights_are_not_those_of_one_network(voting: Path) -> None:
    with pytest.raises(UserError, match=rf"run of an ensemble[\s\S]*{voting}/members/NAME"):
        read_weights(voting)
    with pytest.raises(UserError, match="run of an ensemble"):
        build(compose([*QUICK, f"finetune.weights.path={voting}"]).cfg, voting / "other")


def test_a_teacher(voting: Path, tmp_path: Path) -> None:
    learner = build(compose([*QUICK, f"finetune.distill.teacher={voting}"]).cfg, tmp_path / "student")
    assert isinstance(learner.task, Distillation)
    assert isinstance(learner.task.teacher, Ensemble)
    assert len(learner.task.teacher) == 2
    for data, message in (("diabetes", "another kind of target"), ("digits", "the ensemble has learnt other classes")):
        cfg = compose([*QUICK, f"data={data}", f"finetune.distill.teacher={voting}"]).cfg
        with pytest.raises(UserError, match=f"finetune.distill.teacher: .*{message}"):
            build(cfg, tmp_path / "student")


@pytest.mark.thorough
def test_a_student_is_taught_values(tmp_path: Path) -> None:
    texts = [*QUICK, "data=diabetes", *FEW[:2]]
    Runner(compose([*texts, *VOTING]).cfg, tmp_path / "vote").run()
    done = Runner(compose([*texts, f"finetune.distill.teacher={tmp_path / 'vote'}"]).cfg, tmp_path / "student").run()
    assert done["status"] == "finished"
    assert "std" in reopened(tmp_path / "vote").predict("test")[0]


@pytest.mark.thorough
def test_members_tuned_from_one_base_store_it_once(tmp_path: Path) -> None:
    wide = ("model.hidden=[64,64]",)
    runner(tmp_path / "base", *FEW[:2], *wide).run()
    runner(tmp_path / "tuned", *VOTING, *wide, "finetune=lora", f"finetune.weights.path={tmp_path / 'base'}").run()
    tensors = load_file(tmp_path / "tuned" / "ensemble.safetensors")
    assert sum(tensor.shape == (64, 64) for tensor in tensors.values()) == 1
    assert sum("lora_A" in name for name in tensors) == 4
    ended = result(tmp_path / "tuned")["test"]
    assert reopened(tmp_path / "tuned").evaluate() == pytest.approx(ended, abs=1e-5)


def test_inputs_as_they_are_in_the_data_give_what_the_run_predicts(voting: Path) -> None:
    ensemble = lightkit.load_ensemble(voting)
    known = MemberPredictions.read(voting / "oof.safetensors")
    x, y = load_wine(return_X_y=True)
    outputs = ensemble.predict(x)
    assert isinstance(outputs, np.ndarray)
    assert torch.allclose(torch.tensor(outputs)[known.rows], known.predictions, atol=1e-6)
    assert torch.equal(ensemble.predict(torch.tensor(x)), torch.tensor(outputs))
    measured = ensemble.evaluate(x, y)
    assert measured["accuracy"] == pytest.approx((outputs.argmax(1) == y).mean(), abs=1e-6)
    assert ensemble.evaluate(torch.tensor(x), torch.tensor(y)) == measured


def test_values_are_in_the_unit_of_the_table(tmp_path: Path) -> None:
    own = ("data=diabetes", "data.dataset.target_scale=50", "data.split.val=0.3", "ensemble=voting", "ensemble.size=2")
    run = tmp_path / "v"
    runner(run, *FEW[:2], *own).run()
    ensemble, known = lightkit.load_ensemble(run), MemberPredictions.read(run / "oof.safetensors")
    x, y = load_diabetes(return_X_y=True, scaled=False)
    outputs, written = ensemble.predict(x), [*reopened(run).predict("test")]
    assert outputs[[row["row"] for row in written], 0] == pytest.approx(
        [row["prediction"] for row in written], rel=1e-4
    )
    test = known.of_split("test").rows.numpy()
    logged, measured = result(run)["metrics"], ensemble.evaluate(x[test], y[test])
    assert measured == pytest.approx({name: logged[f"test/{name}"] for name in measured}, rel=1e-4)


def test_it_is_a_sequence_of_its_members(voting: Path) -> None:
    ensemble = lightkit.load_ensemble(str(voting))
    assert (len(ensemble), ensemble.names, sum(ensemble.weights)) == (2, ("00", "01"), pytest.approx(1))
    assert [*ensemble] == [ensemble[0], ensemble[1]]


def test_other_inputs_and_runs_are_refused(voting: Path) -> None:
    ensemble = lightkit.load_ensemble(voting)
    with pytest.raises(UserError, match="no inputs of the run"):
        ensemble.predict(torch.zeros(2, 5))
    with pytest.raises(UserError, match="as many targets as inputs"):
        ensemble.evaluate(torch.zeros(2, 13), torch.zeros(1))
    with pytest.raises(UserError, match="this run is no ensemble"):
        lightkit.load_ensemble(voting / "members" / "00")
    assert ensemble.predict(torch.zeros(0, 13)).shape == (0, 3)


def test_networks_trained_as_one_are_not_tuned(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the networks of this ensemble are trained as one"):
        runner(tmp_path / "run", *KINDS["fuse"], "finetune=lora").run()
    assert not (tmp_path / "run").exists()
