"""Whole runs of stacks: the features beside scikit-learn's, kills, and what is used in the end."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import StackingClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier

from lightkit.assembly import Learner, build
from lightkit.assembly.member import Features
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.stacking import Decision
from lightkit.runner import Runner
from lightkit.runner.evaluation import load_weights
from lightkit.runs.reading import read_jsonl
from lightkit.trainer.callbacks import Callback
from tests.runner.test_run import QUICK, comparable

OPTIONS = [
    *QUICK,
    "ensemble=stacking",
    "ensemble.folds=2",
    "ensemble.members=[{model.hidden: [4]}, {model.hidden: [8]}]",
    "ensemble.meta.trainer.steps=20",
    "scheduler.warmup_steps=1",  # of the members: a meta-model that is solved for takes one step in all
    "++trainer.callbacks.kill={_target_: tests.runner.ensemble.test_stacking.KillIn}",
    "trainer.epochs=2",
]
META = "06-meta"
ONE = ["ensemble.members=[]", "ensemble.size=1"]


class KillIn(Callback):
    """Ends a run in the middle of one of its members, as a crash would."""

    armed: ClassVar[tuple[str, int] | None] = None

    def on_step(self, trainer: Any) -> None:
        if self.armed and self.armed[0] in str(trainer.learner.store.folder) and trainer.state.step == self.armed[1]:
            raise RuntimeError("killed")


def run(folder: Path, *options: str, resume: bool = False) -> dict[str, Any]:
    return Runner(compose([*OPTIONS, *options]).cfg, folder).run(resume=resume)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, "ensemble.holdout=0", "ensemble.passthrough=true", "trainer.epochs=1")
    return folder


@cache
def trained(folder: Path, checkpoint: str) -> Learner:
    learner = build(load_run(folder).cfg, folder, pretrained=False, trains=False)
    load_weights(learner, checkpoint, folder)
    return learner


def test_inputs_of_the_data_come_without_the_weights_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)).tolist()
    Path("rows.csv").write_text("\n".join(["a,b,w,k", *(f"{a},{b},{1 + a * a},{int(a > 0)}" for a, b in drawn)]))
    table = ("data.dataset.path=rows.csv", "data.dataset.target=k", "data.dataset.weight_column=w")
    own = [option for option in OPTIONS if not option.startswith("data")]
    cfg = compose(
        [*own, "data=table", *table, "data.batch_size=8", "ensemble.passthrough=true", "ensemble.holdout=0"]
    ).cfg
    assert Runner(cfg, tmp_path / "run").run()["status"] == "finished"


class Network(ClassifierMixin, BaseEstimator):
    """A member as an estimator of scikit-learn: it is looked up by the rows that it learnt from."""

    def __init__(self, members: Path, kind: str, inputs: Any) -> None:
        self.members, self.kind, self.inputs = members, kind, inputs

    def fit(self, x: Any, y: Any) -> Network:
        self.classes_ = np.unique(y)
        rows = {tuple(row) for row in x}
        for path in sorted(self.members.glob(f"*-hidden={self.kind}-*")):
            last = "refit" in path.name
            learner = trained(path, "last" if last else "best")
            own = {tuple(row) for row in self.inputs[learner.data.rows["train"]]}
            if own == rows:
                self.network_ = learner.model.eval()
                return self
        raise AssertionError("no member learnt from these rows")

    def predict(self, x: Any) -> Any:
        return self.classes_[self.predict_proba(x).argmax(1)]

    def predict_proba(self, x: Any) -> Any:
        with torch.no_grad():
            return self.network_(torch.as_tensor(x)).softmax(1).numpy()


class Keeping(DecisionTreeClassifier):
    """Remembers what it is fitted to."""

    def fit(self, x: Any, y: Any) -> Any:
        self.features_ = x
        return super().fit(x, y)


def test_the_inputs_of_the_meta_model_are_those_of_scikit_learn(whole: Path) -> None:
    members = whole / "members"
    meta = trained(members / META, "last")
    source = meta.data.source
    assert isinstance(source, Features)
    own = source.x * source.scale + source.shift
    first = trained(members / "00-hidden=4-fold0", "best")
    inputs, train = first.data.source.x.numpy(), meta.data.rows["train"].sort().values
    place = {int(row): at for at, row in enumerate(train)}
    cuts = []
    for fold in range(2):
        learner = trained(members / f"0{fold}-hidden=4-fold{fold}", "best")
        assert learner.data.left_out is not None
        parts = (learner.data.rows["train"], learner.data.left_out)
        cuts.append(tuple(np.array([place[int(row)] for row in part]) for part in parts))
    stack = StackingClassifier(
        [(kind, Network(members, kind, inputs)) for kind in ("4", "8")], Keeping(), cv=cuts, passthrough=True
    ).fit(inputs[train], source.y[train].numpy())
    np.testing.assert_allclose(own[train], stack.final_estimator_.features_, atol=1e-6)
    for split in ("val", "test"):
        rows = meta.data.rows[split]
        np.testing.assert_allclose(own[rows], stack.transform(inputs[rows]), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        ["data=wine", "loss.weight=[1.0,2.0,0.5]"],
        ["data=breast_cancer"],
        ["data=breast_cancer", "data.dataset.binary=true", "loss=bce_with_logits", "metrics=binary"],
        ["data=diabetes"],
    ],
)
def test_the_linear_meta_model_is_that_of_scikit_learn(options: list[str], tmp_path: Path) -> None:
    run(tmp_path / "run", "ensemble.holdout=0", "ensemble.refit=false", "trainer.epochs=1", *options)
    meta = trained(next((tmp_path / "run" / "members").glob("*-meta")), "last")
    rows = meta.data.rows["train"]
    x, y = meta.data.source.take(rows)
    model: Any = Ridge() if "diabetes" in options[0] else LogisticRegression(solver="newton-cholesky", tol=1e-13)
    own = np.array([1.0, 2.0, 0.5])[y.numpy()] if len(options) > 1 and "weight" in options[1] else None
    model.fit(x.double().numpy(), y.double().numpy().ravel(), sample_weight=own)
    with torch.no_grad():
        found = meta.model.eval()(x)
    if "diabetes" in options[0]:
        np.testing.assert_allclose(found[:, 0], model.predict(x), rtol=1e-5)
        return
    chances = found.softmax(1) if found.shape[1] > 1 else found.sigmoid()
    expected = model.predict_proba(x.double().numpy())
    np.testing.assert_allclose(chances, expected[:, -chances.shape[1] :], atol=1e-6)


def test_a_stack_is_one_model_and_its_members_are_runs(whole: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    assert result["stacking"]["used"] == "stacking"
    values = Runner(load_run(whole).cfg, whole).evaluate("test")
    assert values == pytest.approx({name: result["metrics"][name] for name in values}, abs=1e-5)
    own = json.loads((whole / "members" / META / "result.json").read_text())
    values = Runner(load_run(whole / "members" / META).cfg, whole / "members" / META).evaluate("test", "last")
    assert values == pytest.approx({name: own["test"][name] for name in values}, abs=1e-6)
    plan = json.loads((whole / "ensemble.json").read_text())["members"]
    assert plan[-1]["name"] == META
    assert plan[-1]["weight"] == 1
    assert "04-hidden=4-refit" in plan[-1]["depends_on"]
    assert sum("val/loss" in row for row in read_jsonl(whole / "metrics.jsonl")) == 1, "no curve over epochs"


@pytest.mark.thorough(first=0)
def test_a_stack_that_is_killed_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["checkpoint.every_steps=2", "ensemble.holdout=0.2", "ensemble.solver=gradient"]
    options += ["ensemble.meta.trainer.steps=120", *ONE]
    run(tmp_path / "whole", *options)
    for number, kill in enumerate([("02-refit", 5), ("03-meta", 110)]):
        monkeypatch.setattr(KillIn, "armed", kill)
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path / "cut", *options, resume=number > 0)
    monkeypatch.setattr(KillIn, "armed", None)
    run(tmp_path / "cut", *options, resume=True)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert {path.name for path in (cut / "members").iterdir()} == {path.name for path in (whole / "members").iterdir()}
    assert (cut / "ensemble.json").read_bytes() == (whole / "ensemble.json").read_bytes()
    for file in ("oof.safetensors", "ensemble.safetensors"):
        ours, theirs = load_file(cut / file), load_file(whole / file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor.nan_to_num(), theirs[name].nan_to_num()) for name, tensor in ours.items()), file
    for member in (whole / "members").iterdir():
        assert comparable(cut / "members" / member.name) == comparable(member)


@pytest.mark.thorough(first=0)
def test_members_are_used_by_weight_where_the_stack_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {"stacking": 0.5, "greedy": 0.4, "uniform": 0.45}
    judged: list[int] = []

    def refuse(candidates: Any, targets: Any, task: str, *, share: float, groups: Any) -> Decision:
        judged.append(len(targets))
        return Decision("greedy", losses, 0.1, len(targets), share)

    monkeypatch.setattr("lightkit.ensemble.methods.stacking.judge", refuse)
    folder = tmp_path / "run"
    more = ["data=diabetes", "ensemble.layers=2", "ensemble.refit=false", "trainer.epochs=1", "logger=default", *ONE]
    result = run(folder, *more, "logger.console.style=lines", "logger.tensorboard.enabled=false")
    line = "stacking is not used: greedy weights do better on 1/9 of the rows that nothing saw: 0.40 against 0.50"
    assert line in capsys.readouterr().out
    assert result["stacking"]["why"] == line
    values = Runner(load_run(folder).cfg, folder).evaluate("test")
    assert values == pytest.approx({name: result["metrics"][name] for name in values}, rel=1e-4, abs=1e-5)
    weights = [member["weight"] for member in json.loads((folder / "ensemble.json").read_text())["members"]]
    assert sum(filter(None, weights)) == pytest.approx(1)
    together = MemberPredictions.read(folder / "oof.safetensors")
    learner = build(load_run(folder).cfg, folder, pretrained=False, trains=False)
    assert len(together.of_split("train")) == len(learner.data.rows["train"])
    assert {name.partition("/")[0] for name in result["metrics"]} == {"val", "test", "oof", "holdout"}
    assert result["selected_on"] == ["oof", "holdout"]
    meta = MemberPredictions.read(next((folder / "members").glob("*-meta")) / "oof.safetensors").of_split("train")
    assert (len(meta), judged) == (judged[0], [len(meta)])


def test_a_kind_that_takes_no_vectors_is_refused_before_anything_trains(tmp_path: Path) -> None:
    more = ["data=digits", "data.split.limit=400", "ensemble.members=[{model: mlp}, {model: cnn}]"]
    with pytest.raises(UserError, match="which this kind of member does not take: the CNN needs images") as caught:
        run(tmp_path / "run", *more, "ensemble.layers=2", "trainer.callbacks={}")
    assert caught.value.key == "ensemble.layers"
    assert "2, with member cnn" in str(caught.value)
    assert not (tmp_path / "run" / "members").exists()
