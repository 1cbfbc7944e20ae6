from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from lightkit.cli import terminal
from lightkit.runs.lock import locked
from tests.cli.test_logs import Interrupted
from tests.compare.made import a_run as made_run
from tests.compare.made import a_sweep
from tests.conftest import Cli, Outcome
from tests.detached.made import make_run, make_sweep, write_progress


def a_run(project: Path, name: str, result: str | None) -> Path:
    folder = project / "outputs" / "runs" / "2026-01-31" / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: run\n")
    if result is not None:
        (folder / "result.json").write_text(result)
    return folder


def test_no_runs_yet_and_no_project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("runs")
    assert (done.code, "no runs in" in done.out, "no project" in done.out) == (0, True, False)
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    note = "this folder is no project, as it has neither conf/ nor experiments/: `mkdir conf` makes it one"
    assert cli("runs").out.endswith(f"\n{note}\n")
    assert f"`lightkit train` makes one; {note}" in cli("resume", "last").err


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
    assert (row["name"], row["seed"], len(row["when"])) == ("demo", 7, len("2026-01-31 12:00:00"))


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
    assert "none of 5 runs in" in cli("runs", "--status", "failed").out


INTERRUPTS = """
import signal
from lightkit.trainer import Callback


class At(Callback):
    def __init__(self, step: int) -> None:
        self.number = step

    def on_step(self, trainer) -> None:
        if trainer.state.step == self.number:
            signal.raise_signal(signal.SIGINT)
"""
"""A callback that presses Ctrl-C."""


def cells(done: Outcome) -> list[list[str]]:
    return [line.split() for line in done.out.splitlines()]


def test_nothing_there(cli: Cli, project: Path) -> None:
    done = cli("ps")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"nothing is running in {project}\n")
    assert json.loads(cli("ps", "--json").out) == []


def test_what_runs_and_how_the_rest_ended(cli: Cli, project: Path) -> None:
    make_run(project, "done", time="11-00-00", status="finished", steps=24)
    make_run(project, "broken", time="11-30-00", status="failed", steps=9, reason="the loss is nan")
    alive, killed = make_run(project, "alive"), make_run(project, "killed", time="12-30-00")
    sweep = make_sweep(project, "seed=0", "seed=1")
    write_progress(alive, 12, 24)
    write_progress(killed, 11, 24)
    with locked(alive), locked(sweep), locked(sweep / "seed=1"):
        done = cli("ps")
    place, pid = "outputs/runs/2026-01-31", str(os.getpid())
    assert cells(done) == [
        ["run", "state", "step", "left", "started", "process", "folder"],
        ["done", "finished", "24", "2026-01-31", "11:00", f"{place}/11-00-00-done"],
        ["broken", "failed", "9", "2026-01-31", "11:30", f"{place}/11-30-00-broken"],
        ["alive", "running", "12/24", "1:05", "2026-01-31", "12:00", pid, f"{place}/12-00-00-alive"],
        ["killed", "died", "11/24", "2026-01-31", "12:30", f"{place}/12-30-00-killed"],
        ["grid", "running", "sweep", "2026-01-31", "13:00", pid, "outputs/sweeps/2026-01-31/13-00-00-grid"],
        [*cells(done)[6][:2], *cells(done)[6][2:]],
        [],
        ["broken", "failed", "at", "step", "9:", "the", "loss", "is", "nan"],
        [],
        ["1", "more:", "lightkit", "ps", "--all"],
    ]
    assert done.out.splitlines()[6].startswith("  grid/seed=1  running")
    assert "grid/seed=0" in cli("ps", "--all").out


def test_several_models_are_shown_by_their_share(cli: Cli, project: Path) -> None:
    folder = make_run(project)
    shown = {"written": 1.0, "share": 0.43, "eta_seconds": 5.0, "table": ["title", ["a"], [["b"]]]}
    (folder / ".progress.json").write_text(json.dumps(shown))
    with locked(folder):
        assert cells(cli("ps"))[1][2:4] == ["43%", "0:05"]


def test_a_run_that_was_interrupted_shows_how_long_it_was_to_be(cli: Cli, project: Path) -> None:
    (project / "interrupts.py").write_text(INTERRUPTS)
    stop = "++trainer.callbacks.stop={_target_: interrupts.At, step: 5}"
    done = cli("train", "data=wine", "model.hidden=[4]", "data.batch_size=32", "trainer.epochs=3", "device=cpu", stop,
               "logger=quiet", "name=cut")  # fmt: skip
    assert done.code == 130, done.err
    assert cells(cli("ps"))[1][:3] == ["cut", "interrupted", "5/12"]
    assert json.loads(cli("ps", "--json").out)[0]["total_steps"] == 12
    longer = cli("resume", "cut", "trainer.epochs=4", "trainer.callbacks.stop.step=6")
    assert longer.code == 130, longer.err
    assert cells(cli("ps"))[1][:3] == ["cut", "interrupted", "6/16"]


def test_a_run_on_another_machine(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(project)
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "gpu7")
        lock = locked(folder)
        lock.__enter__()
    assert f"{os.getpid()} on gpu7" in cli("ps").out
    lock.__exit__(None, None, None)


def test_in_json_again_and_again(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(project, status="finished", steps=24)
    monkeypatch.setattr(terminal, "time", Interrupted())
    lines = [json.loads(line) for line in cli("ps", "--watch", "1", "--json").out.splitlines()]
    assert [row["state"] for line in lines for row in line] == ["finished", "finished"]
    assert (lines[0][0]["name"], lines[0][0]["share"]) == ("a", 1.0)


def test_where_not_all_fit_what_is_alive_is_shown_then_the_newest(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [make_run(project, f"r{hour}", time=f"{hour}-00-00", status="finished") for hour in range(10, 15)]
    monkeypatch.setattr(terminal, "time", Interrupted())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((200, 13)))
    with locked(folders[1]):
        screen = cli("ps", "--watch", "1").out.partition("\x1b[J")[0]
    assert re.findall(r"^r\d\d", screen, re.M) == ["r11", "r13", "r14"]
    assert "2 more" in screen
