"""Repeating a run, and why two runs differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lightkit.runner.causes import judge, parting
from tests.conftest import Cli

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, in_features: int, num_classes: int):
        super().__init__(nn.Linear(in_features, 4), nn.ReLU(), nn.Linear(4, num_classes))
"""
QUICK = (
    *("data=wine", "model=custom", "model._target_=own_net.Net", "trainer.epochs=1"),
    *("logger.console.style=quiet", "metrics.figures=[]"),
)


@pytest.fixture
def trained(cli: Cli, project: Path) -> Path:
    (project / "own_net.py").write_text(NET)
    assert cli("train", *QUICK, "name=a").code == 0
    (folder,) = (project / "outputs" / "runs").glob("*/*-a")
    return folder


def test_a_run_is_repeated_with_the_code_that_it_kept(process: Cli, project: Path, trained: Path) -> None:
    assert (trained / "code" / "own_net.py").read_text() == NET
    (project / "own_net.py").write_text(NET.replace("4", "16"))
    done = process("rerun", "a", "name=b", "--json")  # another name is no other result
    found = json.loads(done.out)
    assert (done.code, found["outcome"], found["largest"]) == (0, "bits", 0.0)
    assert (Path(found["folder"]) / "code" / "own_net.py").read_text() == NET
    assert Path(found["folder"]).name.endswith("-b"), "a name that is typed is that of the folder"
    done = process("rerun", "a", "--current-code")
    assert (done.code, "NOT the same" in done.out, "own_net.py" in done.out) == (1, True, True)


def test_a_received_run_brings_no_code_that_is_used(cli: Cli, project: Path, trained: Path) -> None:
    other = project / "outputs" / "runs" / "received"
    shutil.copytree(trained, other)
    for mark in other.glob(".mark*"):
        mark.unlink()
    done = cli("rerun", str(other))
    assert done.code == 2
    assert "is not among what may be built" in done.err or "trust" in done.err


def test_only_what_has_finished_is_repeated_and_mistakes_come_first(cli: Cli, project: Path, trained: Path) -> None:
    assert cli("rerun", "a", "optim.lrr=1").code == 2
    (trained / "result.json").unlink()
    assert "lightkit resume" in cli("rerun", "a").err
    assert len([*(project / "outputs" / "runs").glob("*/*")]) == 1


def test_why_names_every_planted_cause(cli: Cli, project: Path, trained: Path) -> None:
    (project / "own_net.py").write_text(NET.replace("nn.ReLU", "nn.Tanh"))
    assert cli("train", *QUICK, "name=b", "data.split.seed=3", "optim.lr=0.02").code == 0
    found = json.loads(cli("why", "a", "b", "--json").out)
    causes = {cause["what"].partition(":")[0] for cause in found["causes"]}
    assert {"optim.lr", "data.split.seed"} <= causes
    kinds = {cause["kind"] for cause in found["causes"]}
    assert {"configuration", "data"} <= kinds
    assert found["parting"]["step"] >= 1
    text = cli("why", "a", "b").out
    assert "the curves part at step" in text
    assert cli("why", "a", "a").code == 2


def test_a_run_that_was_resumed_with_other_code_says_so_and_is_not_replayed(cli: Cli, project: Path) -> None:
    (project / "own_net.py").write_text(NET)
    quick = (*QUICK, "logger.trace=1")
    assert cli("train", *quick, "name=b", "trainer.epochs=2").code == 0
    assert cli("train", *quick, "name=a").code == 0
    (project / "own_net.py").write_text(NET.replace("nn.ReLU()", "nn.ReLU6()"))
    assert cli("resume", "a", "trainer.epochs=2").code == 0
    (project / "own_net.py").write_text(NET)
    done = cli("why", "b", "a")
    assert "code     an earlier part of the second run had another own_net.py (code/earlier/" in done.out
    assert "replaying" not in done.err
    if "the curves part" in done.out:
        assert "differs first: a run that was resumed with other code is not replayed" in done.out


def test_numbers_that_are_alike_to_four_decimals_are_shown_in_full(cli: Cli, project: Path, trained: Path) -> None:
    other = trained.with_name("00-00-00-b")
    shutil.copytree(trained, other)
    for folder, loss in ((trained, 0.50000001), (other, 0.50000002)):
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "epoch": 1, "train/loss": loss}) + "\n")
    assert "train/loss is 0.50000001 and 0.50000002" in cli("why", "a", "b").out


def test_why_reads_code_rows_versions_and_variables(cli: Cli, project: Path, trained: Path) -> None:
    other = trained.with_name("00-00-00-b")
    shutil.copytree(trained, other)
    assert "the runs are the same in all that is known of them" in cli("why", "a", "b").out
    (other / "code" / "own_net.py").unlink()
    (other / "code" / "own_net.py").write_text(NET.replace("ReLU", "Tanh"))
    facts = json.loads((other / "environment.json").read_text())
    facts["packages"]["torch"], facts["variables"] = "1.0", {"OMP_NUM_THREADS": "77"}
    (other / "environment.json").write_text(json.dumps(facts))
    text = cli("why", "a", "b").out
    assert "+        super().__init__(nn.Linear(in_features, 4), nn.Tanh()" in text
    assert "torch: " in text
    assert "OMP_NUM_THREADS: " in text
    assert "what both have logged is the same" in text


def written(folder: Path, rows: list[dict[str, float]], **metrics: float | None) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "result.json").write_text(json.dumps({"status": "finished", "metrics": metrics}))
    return folder


def test_every_line_of_a_step_is_compared_and_what_is_not_finite_is_no_value(tmp_path: Path) -> None:
    def rows(loss: float) -> list[dict[str, float]]:
        return [{"step": 8, "epoch": 1, "train/loss": loss}, {"step": 8, "epoch": 1, "val/loss": 1.0}]

    one = written(tmp_path / "one", rows(0.5), **{"test/loss": 0.5})
    other = written(tmp_path / "other", rows(0.6), **{"test/loss": None})
    assert parting(one, other) == (8, "train/loss", 0.5, 0.6)
    verdict = judge(one, other, tolerance=1.0)
    assert (verdict.outcome, verdict.largest) == ("neither", None)


def test_a_repeated_run_chooses_its_folder(cli: Cli, trained: Path) -> None:
    assert "hydra.run.dir" in cli("rerun", "a", "hydra.run.dir=here").err


def test_a_fold_is_repeated_with_the_code_of_its_cross_validation(process: Cli, project: Path) -> None:
    (project / "own_net.py").write_text(NET)
    assert process("train", *QUICK, "cv=2", "hydra.run.dir=folds").code == 0
    (project / "own_net.py").write_text(NET.replace("4", "16"))
    found = json.loads(process("rerun", "folds/members/fold-0", "--json").out)
    assert found["outcome"] in ("bits", "values"), "folds may have trained at once, which rounds otherwise"
    assert (Path(found["folder"]) / "code" / "own_net.py").read_text() == NET


def test_checkpoints_that_were_removed_are_not_compared(trained: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    assert judge(trained, other, tolerance=0).compared[0].name == "model"
    shutil.rmtree(other / "checkpoints")
    verdict = judge(trained, other, tolerance=0)
    assert verdict.outcome == "bits"
    assert [part.name for part in verdict.compared] == ["metrics.jsonl", "TensorBoard", "result.json", "checkpoints"]
