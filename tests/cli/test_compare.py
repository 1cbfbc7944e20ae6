from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compare.made import SWEEP, a_run, a_sweep, predictions
from tests.conftest import Cli


@pytest.fixture
def sweep(project: Path) -> Path:
    return a_sweep(project, {0.1: [0.5, 0.75, 0.7], 0.01: [0.25, 0.5, 0.6]}, curve=[0.1, 0.5])


def test_the_newest_sweep_is_compared_without_a_name(cli: Cli, sweep: Path) -> None:
    done = cli("compare")
    lines = done.out.splitlines()
    assert done.code == 0, done.err
    assert lines[0].split()[:3] == ["lr", "n", "val/accuracy"]
    assert lines[1].split()[:6] == ["0.1", "3", "0.6500", "±", "0.1323", "*"]
    assert "by seed, against lr=0.01:" in lines  # the first run of two groups


def test_a_sweep_by_its_folder_or_name_and_a_baseline_from_elsewhere(cli: Cli, project: Path, sweep: Path) -> None:
    for name in (SWEEP, "sweeps/2026-01-31", "demo"):
        assert len(json.loads(cli("compare", name, "--json").out)["groups"]) == 2
    other = a_run(project / "outputs" / "base", lr=0.3, val=0.9)
    done = json.loads(cli("compare", "demo", "--baseline", "base", "--json").out)
    assert (done["baseline"], len(done["groups"])) == ("lr=0.3", 3)
    assert done["groups"][0]["runs"][0]["folder"] == str(other)


def test_conditions_choose_runs(cli: Cli, sweep: Path) -> None:
    done = json.loads(cli("compare", "--where", "optim.lr>0.05", "--where", "seed<2", "--json").out)
    assert [len(one["runs"]) for one in done["groups"]] == [2]


def test_files(cli: Cli, project: Path, sweep: Path) -> None:
    names = {"html": "<!doctype html>", "png": "\x89PNG", "csv": "group,optim.lr,runs", "markdown": "|  | lr | n |"}
    done = cli("compare", *(text for name in names for text in (f"--{name}", f"made.{name}")))
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "written to made.csv, made.markdown, made.html, made.png"
    for name, begin in names.items():
        assert (project / f"made.{name}").read_bytes().decode("latin-1").startswith(begin)
    assert cli("compare", "--csv", "-").out == (project / "made.csv").read_text()


def test_rows_are_compared_where_predictions_are_there(cli: Cli, sweep: Path) -> None:
    for folder in sweep.iterdir():
        right = "lr=0.1," in folder.name
        rows = [(row, "a", "a" if right or row > 6 else "b", 0.9 if right else 0.4) for row in range(30)]
        predictions(folder, rows)
    done = cli("compare", "--rows", "test")
    assert done.code == 0, done.err
    assert "by row of test, mean loss, against lr=0.01:" in done.out
    found = json.loads(cli("compare", "--rows", "test", "--json").out)
    assert [(one["seed"], one["test"]["gained"], one["test"]["lost"]) for one in found["mcnemar"]] == [
        (seed, 7, 0) for seed in range(3)
    ]
    assert found["row_tests"][0]["test"]["mean"] == pytest.approx(-7 / 30)


@pytest.mark.thorough(first=0)
def test_rows_of_a_run_that_was_trained_are_predicted(cli: Cli, project: Path) -> None:
    common = ("data=wine", "model.hidden=[8]", "trainer.epochs=1", "device.name=cpu")
    for lr in ("0.1", "0.001"):
        assert cli("train", *common, f"optim.lr={lr}", f"hydra.run.dir=outputs/{lr}").code == 0
    done = cli("compare", "outputs/0.1", "outputs/0.001", "--rows", "val", "--json", "device.name=cpu")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["baseline"], found["split"], found["row_tests"][0]["test"]["n"]) == ("lr=0.1", "val", 18)
    assert "18 rows written" in done.err
    assert {entry["verdict"] for entry in found["seed_tests"]} == {"too few seeds"}
    assert cli("compare", "outputs/0.1", "outputs/0.001", "--rows", "val").err == ""


def test_without_any_run(cli: Cli, project: Path) -> None:
    done = cli("compare")
    assert done.code == 2
    assert "no sweep in" in done.err
