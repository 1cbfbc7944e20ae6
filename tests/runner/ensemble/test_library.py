"""Ensembles of finished runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner import Runner
from lightkit.runner.run import combine_runs
from lightkit.runs.reading import read_json, read_run
from tests.runner.finished_runs import member, trained

VOTING = {"_target_": "lightkit.ensemble.methods.Voting", "members": [], "member": {}}
GREEDY = {"_target_": "lightkit.ensemble.methods.Greedy", "members": [], "member": {}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a`; `b` of another network; `v`, a vote; `c`, split and scaled in another way; `bare`, the weights of `a`."""
    home = tmp_path_factory.mktemp("runs")
    trained(home / "a")
    trained(home / "b", "model.hidden=[6,6]", "seed=1")
    trained(home / "v", "ensemble=voting", "ensemble.size=2")
    trained(home / "c", "data.split.seed=1", "data.normalize=minmax")
    newest = CheckpointStore(home / "a" / "checkpoints").newest()
    assert newest is not None
    torch.save(content.load_model_state(newest), home / "bare.pt")
    return home


def combined(out: Path, *runs: Path, method: Any = VOTING, **more: Any) -> dict[str, Any]:
    members = [member(f"{i:02}-{path.name}", path) for i, path in enumerate(runs)]
    return combine_runs(members, out, method=method, name="together", **more)


def evaluated(folder: Path) -> dict[str, float]:
    values = Runner(read_run(folder).cfg, folder).evaluate_splits(["val", "test"])
    return {**values["val"], **values["test"]}


def test_unlike_runs_and_an_ensemble_become_one(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = combined(out, runs / "a", runs / "b", runs / "v", weights=[1, 1, 2])
    plan = read_json(out / "ensemble.json")
    assert [row["weight"] for row in plan["members"]] == [0.25, 0.25, 0.5]
    assert plan["members"][0]["folder"] == str(runs / "a")
    assert plan["settings"]["weights"] == [1, 1, 2]
    assert read_run(out).cfg.ensemble._target_ == VOTING["_target_"]
    assert result == json.loads((out / "result.json").read_text())
    assert evaluated(out) == pytest.approx(result["metrics"], abs=1e-5)
    assert len(Runner(read_run(out).cfg, out).predict("test")) == plan["rows"]["test"] == 36
    again = combined(tmp_path / "again", runs / "a", out)
    assert evaluated(tmp_path / "again") == pytest.approx(again["metrics"], abs=1e-5)


def test_rows_that_a_run_trained_on_are_left_out(runs: Path, tmp_path: Path) -> None:
    result = combined(tmp_path / "out", runs / "a", runs / "c", method=GREEDY)
    rows = MemberPredictions.read(tmp_path / "out" / "oof.safetensors").rows
    for name in ("a", "c"):
        assert torch.isin(rows, MemberPredictions.read(runs / name / "oof.safetensors").rows).all()
    assert 0 < len(rows) < 40
    assert evaluated(tmp_path / "out") == pytest.approx(result["metrics"], abs=1e-5)


def test_predictions_that_are_not_kept_are_made_as_before(runs: Path, tmp_path: Path) -> None:
    paths = [runs / name / "oof.safetensors" for name in ("a", "v")]
    if not paths[0].is_file():
        combined(tmp_path / "first", runs / "a", runs / "v")
    before = [MemberPredictions.read(path) for path in paths]
    for path in paths:
        path.unlink()
    combined(tmp_path / "out", runs / "a", runs / "v")
    for one, other in zip(before, map(MemberPredictions.read, paths)):
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.split, other.split)
        assert torch.allclose(one.predictions, other.predictions, atol=1e-6)


@pytest.mark.thorough(first=0)
def test_when_nothing_is_left_it_is_said_why(tmp_path: Path) -> None:
    halves = ("data.split.by=fold", "data.split.folds=2", "data.split.val=0", "metrics.monitor=train/loss")
    one, two = (
        trained(tmp_path / name, *halves, f"data.split.fold={fold}", "trainer.test=last")
        for fold, name in enumerate(("one", "two"))
    )
    with pytest.raises(UserError, match="no row that none of these runs trained on") as caught:
        combined(tmp_path / "out", one, two)
    assert "00-one trained on 89 rows" in str(caught.value)
    with pytest.raises(UserError, match="left to weigh"):
        combined(tmp_path / "out", one, one, method=GREEDY)
    assert not (tmp_path / "out" / "config.yaml").exists()


@pytest.mark.thorough(first=0)
def test_runs_that_do_not_go_together_are_refused(runs: Path, tmp_path: Path) -> None:
    other = trained(tmp_path / "other", "data=diabetes", "loss=mse", "metrics=regression")
    with pytest.raises(UserError, match="the members are of different data"):
        combined(tmp_path / "out", runs / "a", other)
    result = combined(tmp_path / "out", other, other)
    assert evaluated(tmp_path / "out") == pytest.approx(result["metrics"], rel=1e-5)


def test_unfinished_and_damaged_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "a", tmp_path / "a"))
    steps: dict[str, Any] = {
        "holds no predictions of a member": lambda: (run / "oof.safetensors").write_bytes(b"damaged"),
        "the run has no checkpoint": lambda: shutil.rmtree(run / "checkpoints"),
        "this run has not finished": lambda: (run / "result.json").unlink(),
    }
    for message, damage in steps.items():
        damage()
        with pytest.raises(UserError, match=message):
            combined(tmp_path / "out", run, run)


@pytest.mark.thorough(first=0)
def test_rows_that_weights_of_a_bare_file_have_seen_are_named_as_unknown(runs: Path, tmp_path: Path) -> None:
    bare = runs / "bare.pt"
    tuned = trained(tmp_path / "tuned", f"finetune.weights.path={bare}")
    result = combined(tmp_path / "out", tuned, runs / "a", method=GREEDY)
    assert result["unknown_rows"] == {"00-tuned": [str(bare)]}
    assert result["seen_rows"] == {}
    assert result["selected_on"] == ["val"]
    line = f"00-tuned began with the weights of {bare}: which rows these have learnt from is not known"
    assert line in (tmp_path / "out" / "run.log").read_text()
    assert read_json(tmp_path / "out" / "result.json")["unknown_rows"] == result["unknown_rows"]


def test_folds_of_a_base_that_has_seen_all_rows_are_named(runs: Path, tmp_path: Path) -> None:
    folds = ("ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2")
    folder = trained(tmp_path / "bag", *folds, f"finetune.weights.path={runs / 'a'}")
    assert read_json(folder / "result.json")["seen_rows"] == {"each member": 124}
    line = "weights that have learnt from 124 of the 178 rows that count as unseen"
    assert line in (folder / "run.log").read_text()
