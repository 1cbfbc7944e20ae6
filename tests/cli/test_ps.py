from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli import logs
from lightkit.cli.runs import foremost
from lightkit.detached.listing import list_entries
from lightkit.runs.lock import locked
from tests.conftest import Outcome
from tests.detached.made import make_run, make_sweep, write_progress

Cli = Callable[..., Outcome]

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
    looks = iter([None, KeyboardInterrupt])

    def sleep(seconds: float) -> None:
        if error := next(looks):
            raise error

    monkeypatch.setattr(logs.time, "sleep", sleep)
    lines = [json.loads(line) for line in cli("ps", "--watch", "1", "--json").out.splitlines()]
    assert [row["state"] for line in lines for row in line] == ["finished", "finished"]
    assert (lines[0][0]["name"], lines[0][0]["share"]) == ("a", 1.0)


def test_where_not_all_fit_what_is_alive_is_shown_then_the_newest(project: Path) -> None:
    folders = [make_run(project, f"r{hour}", time=f"{hour}-00-00", status="finished") for hour in range(10, 15)]
    with locked(folders[1]):
        entries, _ = list_entries(project)
        assert [entry.name for entry in foremost(entries, 3)] == ["r11", "r13", "r14"]
        assert foremost(entries, 9) == entries
