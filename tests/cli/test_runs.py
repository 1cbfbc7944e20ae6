from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compare.made import a_run as made_run
from tests.compare.made import a_sweep
from tests.conftest import Outcome

Cli = Callable[..., Outcome]


def a_run(project: Path, name: str, result: str | None) -> Path:
    folder = project / "outputs" / "runs" / "2026-01-31" / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: run\n")
    if result is not None:
        (folder / "result.json").write_text(result)
    return folder


def test_no_runs_yet(cli: Cli) -> None:
    done = cli("runs")
    assert done.code == 0
    assert "no runs in" in done.out
    assert "no project" not in done.out


def test_outside_of_a_project_a_folder_learns_how_it_becomes_one(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path / "plain")
        done, missing = cli("runs"), cli("resume", "last")
    note = "this folder is no project, as it has neither conf/ nor experiments/: `mkdir conf` makes it one"
    assert done.out.endswith(f"\n{note}\n")
    assert f"`lightkit train` makes one; {note}" in missing.err


def test_table_is_tolerant(cli: Cli, project: Path) -> None:
    good = {"status": "finished", "objective": {"name": "val/accuracy", "value": 0.987654}, "epochs": 3}
    a_run(project, "09-00-00-good", json.dumps(good))
    a_run(project, "10-00-00-broken", '{"status": "do')
    a_run(project, "11-00-00-list", "[1, 2]")
    a_run(project, "12-00-00-odd", json.dumps({"status": 3, "objective": 7, "epochs": "many"}))
    a_run(project, "13-00-00-killed", None)
    done = cli("runs")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0].split() == ["when", "name", "seed", "status", "metric", "best", "epochs", "folder"]
    assert lines[1].split()[:7] == ["2026-01-31", "09:00:00", "good", "finished", "val/accuracy", "0.9877", "3"]
    assert [line.split()[3] for line in lines[2:]] == ["damaged"] * 3 + ["unfinished"]
    assert "12-00-00-odd: result.json: `status` is not one of finished, paused" in done.err


def test_json_and_limit(cli: Cli, project: Path) -> None:
    for hour in range(3):
        a_run(project, f"0{hour}-00-00-run", json.dumps({"status": "finished", "objective": {"value": float("nan")}}))
    rows = json.loads(cli("runs", "--json", "--limit", "2").out)
    assert [row["folder"] for row in rows] == [f"outputs/runs/2026-01-31/0{hour}-00-00-run" for hour in (1, 2)]
    assert rows[0]["best"] is None
    assert len(json.loads(cli("runs", "--json", "--limit", "0").out)) == 3


def test_a_run_in_a_folder_of_ones_own_choice_has_a_time(cli: Cli, project: Path) -> None:
    folder = project / "outputs" / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: run\ndata:\n  split:\n    seed: 3\nseed: 7\n")
    (row,) = json.loads(cli("runs", "--json").out)
    assert (row["name"], row["seed"]) == ("demo", 7)
    assert len(row["when"]) == len("2026-01-31 12:00:00")


def test_an_ensemble_is_one_run_with_a_number_of_members(cli: Cli, project: Path) -> None:
    done = json.dumps({"status": "finished", "objective": {"name": "val/accuracy", "value": 0.5}})
    a_run(project, "09-00-00-one", done)
    folder = a_run(project, "10-00-00-many", done)
    for name in ("00", "01"):
        (folder / "members" / name).mkdir(parents=True)
        (folder / "members" / name / "config.yaml").write_text("name: many\n")
    lines = cli("runs").out.splitlines()
    assert lines[0].split()[-2:] == ["members", "folder"]
    assert len(lines) == 3
    assert lines[2].split()[-2:] == ["2", "outputs/runs/2026-01-31/10-00-00-many"]
    assert [row["members"] for row in json.loads(cli("runs", "--json").out)] == [None, 2]


def test_filters_and_order(cli: Cli, project: Path) -> None:
    a_sweep(project, {0.1: [0.5, 0.75], 0.01: [0.25, 0.9]})
    made_run(project / "outputs" / "late", lr=0.3, val=None, curve=[0.3, 0.6, 0.4])
    done = cli("runs", "--where", "optim.lr>0.05", "--sort", "val/accuracy")
    lines = done.out.splitlines()
    assert done.code == 0, done.err
    assert " ".join(lines[0].split()) == "when name seed status metric best epochs optim.lr val/accuracy folder"
    assert [line.split()[4] for line in lines[1:]] == ["finished", "unfinished", "finished"]
    assert [line.split()[-2] for line in lines[1:]] == ["0.7500", "0.6000", "0.5000"]
    first = json.loads(cli("runs", "--sort", "-val/accuracy", "--limit", "1", "--json").out)
    assert first[0]["val/accuracy"] == 0.25
    (late,) = json.loads(cli("runs", "--status", "unfinished", "--json").out)
    assert (late["best"], late["epochs"], late["metric"]) == (0.6, 3, "val/accuracy")


def test_none_is_like_that(cli: Cli, project: Path) -> None:
    a_sweep(project, {0.1: [0.5]})
    assert "none of 1 run in" in cli("runs", "--status", "failed").out
