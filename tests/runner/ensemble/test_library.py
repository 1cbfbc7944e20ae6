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
    """`a`; `b` of another network; `v`, a vote; `c`, split and scaled in another way."""
    home = tmp_path_factory.mktemp("runs")
    trained(home / "a")
    trained(home / "b", "model.hidden=[6,6]", "seed=1")
    trained(home / "v", "ensemble=voting", "ensemble.size=2")
    trained(home / "c", "data.split.seed=1", "data.normalize=minmax")
    return home


def combined(runs: Path, out: Path, *names: str, **more: Any) -> dict[str, Any]:
    members = [member(f"{i:02}-{Path(name).name}", runs / name) for i, name in enumerate(names)]
    return combine_runs(members, out, **{"method": VOTING, "name": "together", **more})


def evaluated(folder: Path) -> dict[str, float]:
    found = Runner(read_run(folder).cfg, folder).evaluate_splits(["val", "test"])
    return {**found["val"], **found["test"]}


def test_unlike_runs_and_an_ensemble_become_one(runs: Path, tmp_path: Path) -> None:
    result = combined(runs, tmp_path / "out", "a", "b", "v", weights=[1, 1, 2])
    plan = read_json(tmp_path / "out" / "ensemble.json")
    assert [row["weight"] for row in plan["members"]] == [0.25, 0.25, 0.5]
    assert plan["members"][0]["folder"] == str(runs / "a")
    assert plan["settings"]["weights"] == [1, 1, 2]
    assert read_run(tmp_path / "out").cfg.ensemble._target_ == VOTING["_target_"]
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
    assert evaluated(tmp_path / "out") == pytest.approx(result["metrics"], abs=1e-5)
    rows = Runner(read_run(tmp_path / "out").cfg, tmp_path / "out").predict("test")
    assert len(rows) == plan["rows"]["test"] == 36
    again = combined(runs, tmp_path / "again", "a", str(tmp_path / "out"))
    assert evaluated(tmp_path / "again") == pytest.approx(again["metrics"], abs=1e-5)


def test_rows_that_a_run_trained_on_are_left_out(runs: Path, tmp_path: Path) -> None:
    result = combined(runs, tmp_path / "out", "a", "c", method=GREEDY)
    rows, seen = MemberPredictions.read(tmp_path / "out" / "oof.safetensors").rows, torch.zeros(0, dtype=torch.int64)
    for name in ("a", "c"):
        held = MemberPredictions.read(runs / name / "oof.safetensors").rows
        assert torch.isin(rows, held).all()
        seen = torch.cat([seen, rows[~torch.isin(rows, held)]])
    assert 0 < len(rows) < 40
    assert not len(seen)
    assert evaluated(tmp_path / "out") == pytest.approx(result["metrics"], abs=1e-5)


@pytest.mark.parametrize("name", ["a", "v"])
def test_predictions_that_are_not_kept_are_made_as_before(runs: Path, tmp_path: Path, name: str) -> None:
    path = runs / name / "oof.safetensors"
    if not path.is_file():
        combined(runs, tmp_path / "first", name, "b")
    before = MemberPredictions.read(path)
    path.unlink()
    combined(runs, tmp_path / "out", name, "b")
    after = MemberPredictions.read(path)
    assert torch.equal(after.rows, before.rows)
    assert torch.equal(after.split, before.split)
    assert torch.allclose(after.predictions, before.predictions, atol=1e-6)


def test_when_nothing_is_left_it_is_told_why(runs: Path, tmp_path: Path) -> None:
    halves = ("data.split.by=fold", "data.split.folds=2", "data.split.val=0", "metrics.monitor=train/loss")
    one, two = (
        trained(tmp_path / name, *halves, f"data.split.fold={fold}", "trainer.test=last")
        for fold, name in enumerate(("one", "two"))
    )
    with pytest.raises(UserError, match="no row that none of these runs trained on") as caught:
        combine_runs([member("00-one", one), member("01-two", two)], tmp_path / "out", method=VOTING, name="x")
    assert "00-one trained on 89 rows" in str(caught.value)
    with pytest.raises(UserError, match="left to weigh"):
        combine_runs([member("00", one), member("01", one)], tmp_path / "out", method=GREEDY, name="x")
    assert not (tmp_path / "out" / "config.yaml").exists()


def test_runs_that_do_not_go_together_are_refused(runs: Path, tmp_path: Path) -> None:
    other = trained(tmp_path / "other", "data=diabetes", "loss=mse", "metrics=regression")
    with pytest.raises(UserError, match="the members are of different data"):
        combine_runs([member("00", runs / "a"), member("01", other)], tmp_path / "out", method=VOTING, name="x")
    result = combine_runs([member("00", other), member("01", other)], tmp_path / "out", method=VOTING, name="x")
    assert evaluated(tmp_path / "out") == pytest.approx(result["metrics"], rel=1e-5)


def test_unfinished_and_damaged_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "a", tmp_path / "a")
    (tmp_path / "a" / "oof.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="holds no predictions of a member"):
        combined(tmp_path, tmp_path / "out", "a", "a")
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    with pytest.raises(UserError, match="the run has no checkpoint"):
        combined(tmp_path, tmp_path / "out", "a", "a")
    (tmp_path / "a" / "result.json").unlink()
    with pytest.raises(UserError, match="this run has not finished"):
        combined(tmp_path, tmp_path / "out", "a", "a")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def bare(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a run in a file that is in no run."""
    path = tmp_path_factory.mktemp("bare") / "bare.pt"
    newest = CheckpointStore(base / "checkpoints").newest()
    assert newest is not None
    torch.save(content.load_model_state(newest), path)
    return path


def test_rows_that_weights_of_a_bare_file_have_seen_are_named_as_unknown(
    base: Path, bare: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = trained(tmp_path / "tuned", f"finetune.weights.path={bare}")
    runs = [member("00-tuned", tuned), member("01-base", base)]
    capsys.readouterr()
    result = combine_runs(runs, tmp_path / "out", method=GREEDY, name="both")
    assert result["unknown_rows"] == {"00-tuned": [str(bare)]}
    assert result["seen_rows"] == {}
    assert result["selected_on"] == ["val"]
    told = f"00-tuned began with the weights of {bare}: which rows these have learnt from is not known"
    assert told in (tmp_path / "out" / "run.log").read_text()
    assert read_json(tmp_path / "out" / "result.json")["unknown_rows"] == result["unknown_rows"]


@pytest.mark.parametrize("known", [True, False])
def test_folds_of_a_base_that_has_seen_all_rows_are_told_of(
    known: bool, base: Path, bare: Path, tmp_path: Path
) -> None:
    path = base if known else bare
    folder = trained(
        tmp_path / "bag",
        "ensemble=bagging",
        "ensemble.resample=folds",
        "ensemble.folds=2",
        f"finetune.weights.path={path}",
    )
    result, log = read_json(folder / "result.json"), (folder / "run.log").read_text()
    if known:
        assert result["seen_rows"] == {"each member": 124}
        assert "weights that have learnt from 124 of the 178 rows that count as unseen" in log
    else:
        assert result["unknown_rows"] == {"each member": [str(bare)]}
        assert "is not known" in log
