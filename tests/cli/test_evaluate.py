from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.runs.catalog import find_run
from tests.conftest import Outcome

Cli = Callable[..., Outcome]


@pytest.fixture
def trained(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with the configuration of a real run, and a Runner that computes nothing."""
    folder = project / "outputs" / "runs" / "2026-01-31" / "12-00-00-run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(cli("train", "--cfg", "job", "--resolve").out)
    return folder


def test_metrics_as_table_and_file(cli: Cli, runner: Any, trained: Path) -> None:
    done = cli("eval", "last")
    assert done.code == 0, done.err
    assert [line.split() for line in done.out.splitlines()[1:3]] == [
        ["test/loss", "0.5000"],
        ["test/accuracy", "0.9877"],
    ]
    content = json.loads((trained / "eval-test.json").read_text())
    assert content == {
        "split": "test",
        "checkpoint": "best",
        "overrides": [],
        "metrics": {"test/loss": 0.5, "test/accuracy": 0.987654},
    }
    assert runner.asked == [("evaluate", trained, ("test", "best"))]


def test_samples_it_has_learnt_from_are_warned_of(cli: Cli, runner: Any, trained: Path) -> None:
    other = cli("eval", "last", "data.split.seed=1")
    assert (other.code, "warning: data.split is not that of the run" in other.err) == (0, True)
    assert json.loads((trained / "eval-test.json").read_text())["overrides"] == ["data.split.seed=1"]
    assert cli("eval", "last", "data.eval_batch_size=7").err == ""


def test_other_split_checkpoint_and_override(cli: Cli, runner: Any, trained: Path) -> None:
    done = cli("eval", "--split", "val", str(trained), "data.eval_batch_size=7", "--checkpoint=last")
    assert done.code == 0, done.err
    assert runner.asked == [("evaluate", trained, ("val", "last"))]
    assert (trained / "eval-val.json").exists()


def test_predictions_as_csv(cli: Cli, runner: Any, trained: Path, project: Path) -> None:
    done = cli("predict", "last", "--output", "out.csv")
    assert done.code == 0, done.err
    with (project / "out.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["index", "prediction", "target"],
            ["4", "class, 4", "4"],
            ["7", "class, 7", "7"],
        ]
    assert cli("predict", "last").code == 0
    assert (trained / "predictions-test.csv").exists()
    assert cli("predict", "last", "--output", "-").out.splitlines()[1] == '4,"class, 4",4'
    assert [asked[0] for asked in runner.asked] == ["predict"] * 3


@pytest.mark.usefixtures("runner", "trained")
def test_nothing_to_predict_leaves_no_file(cli: Cli, project: Path) -> None:
    done = cli("predict", "last", "--split", "train", "--output", "out.csv")
    assert done.code == 2
    assert "nothing to predict" in done.err
    assert not list(project.glob("out.csv*"))


@pytest.mark.usefixtures("runner", "trained")
def test_unwritable_output(cli: Cli) -> None:
    done = cli("predict", "last", "--output", "missing/folder/out.csv")
    assert done.code == 2
    assert "cannot write the file" in done.err


def test_resume_goes_on_in_the_same_folder(cli: Cli, runner: Any, trained: Path, project: Path) -> None:
    done = cli("resume", "last", "trainer.epochs=20")
    assert done.code == 0, done.err
    assert runner.asked == [("run", trained, (True, "trainer.epochs=20"))]
    assert find_run("last", project) == trained


def test_from_starts_a_new_run(cli: Cli, runner: Any, trained: Path) -> None:
    done = cli("train", "--from", "last", "seed=4")
    assert done.code == 0, done.err
    assert runner.asked[0][1] != trained


@pytest.mark.thorough
@pytest.mark.parametrize("overrides", [(), ("trainer.epochs=7",)])
def test_resume_leaves_a_finished_run_alone(cli: Cli, runner: Any, trained: Path, overrides: tuple[str, ...]) -> None:
    (trained / "config.yaml").write_text(cli("train", "--cfg", "job", "--resolve", "trainer.epochs=7").out)
    (trained / "result.json").write_text('{"status": "finished"}')
    done = cli("resume", "last", *overrides)
    assert done.code == 0
    assert "has finished already; make it longer with trainer.epochs=N" in done.out
    assert runner.asked == []
    assert cli("resume", "last", "trainer.epochs=8").code == 0
    assert len(runner.asked) == 1


def test_a_run_is_found_by_its_name(cli: Cli, runner: Any, trained: Path) -> None:
    assert cli("eval", "run").code == 0
    assert runner.asked == [("evaluate", trained, ("test", "best"))]


def test_members_of_an_ensemble(cli: Cli, runner: Any, trained: Path) -> None:
    assert cli("eval", "last", "--members", "00,03").code == 0
    assert json.loads((trained / "eval-test.json").read_text())["members"] == ["00", "03"]
    assert cli("predict", "last", "--members=01").code == 0
    assert runner.asked == [
        ("evaluate", trained, ("test", "best", "00", "03")),
        ("predict", trained, ("test", "best", "01")),
    ]
