"""Loggers of a user's own: `logger.more.NAME`."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import main
from lightkit.runs.reading import read_jsonl
from tests.conftest import Outcome
from tests.resume.harness import forked
from tests.runner.processes import configured, train

Cli = Callable[..., Outcome]
RUN = "outputs/runs/one"
SHORT = (
    "data=wine", "model.hidden=[8]", "trainer.epochs=3", "checkpoint.every_steps=3", "logger.every_steps=2",
    "logger.tensorboard.enabled=false", "metrics.figures=[]", "device=cpu",
)  # fmt: skip
MINE = "logger.more.mine._target_=mine.Rows"
CODE = '''
import json
import os
import signal

import lightkit
from lightkit.trainer import Callback


class Rows(lightkit.Logger):
    """Keeps the rows in a file of its own."""

    def __init__(self, folder, monitor, fail="", file="rows.json"):
        self.path, self.monitor, self.fail = folder / file, monitor, fail
        self._note("init")

    def _note(self, method, **row):
        if method == self.fail:
            raise ConnectionError("no route to host")
        if row:
            rows = json.loads(self.path.read_text()) if self.path.exists() else []
            self.path.write_text(json.dumps([*rows, row]))

    def start(self, step, kept=()):
        self._note("start of 01" if self.path.parent.name == "01" else "start")
        self.path.write_text(json.dumps(list(kept)))

    def hparams(self, params, overrides=()):
        self._note("hparams")

    def scalars(self, values, *, step, epoch):
        self._note("scalars", step=step, epoch=epoch, **values)

    def sync(self):
        self._note("sync")

    def end(self, status):
        self._note("end")

    def close(self):
        self._note("close")


class Kill(Callback):
    """Kills the run once."""

    def on_step(self, trainer):
        if trainer.state.step == 11 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
'''


@pytest.fixture
def own(project: Path) -> Path:
    (project / "mine.py").write_text(CODE)
    return project


def timeless(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def rows(folder: Path) -> list[dict[str, Any]]:
    return timeless(json.loads((folder / "rows.json").read_text()))


def logged(folder: Path) -> list[dict[str, Any]]:
    return timeless(read_jsonl(folder / "metrics.jsonl"))


def test_rows_are_those_of_the_metrics_after_a_kill_and_a_resume(own: Path, cli: Cli) -> None:
    kill = "trainer.callbacks.kill._target_=mine.Kill"
    forked(lambda: main(["train", *SHORT, MINE, kill, f"hydra.run.dir={RUN}"]), own / "log", want=-signal.SIGKILL)
    folder, before = own / RUN, len(rows(own / RUN))
    assert not (folder / "result.json").exists()
    assert cli("resume", RUN).code == 0
    assert len(rows(folder)) > before
    assert rows(folder) == logged(folder)
    steps = [row["step"] for row in rows(folder) if "train/loss_step" in row]
    assert steps == sorted({*steps})


@pytest.mark.parametrize("method", ["init", "start"])
def test_what_fails_before_the_first_step_is_an_error_that_names_it(own: Path, cli: Cli, method: str) -> None:
    failed = cli("train", *SHORT, MINE, f"logger.more.mine.fail={method}")
    assert failed.code == 2
    assert "logger.more.mine" in failed.err
    assert "ConnectionError: no route to host" in failed.err
    assert "Traceback" not in failed.err


@pytest.mark.parametrize("method", ["scalars", "close"])
def test_what_fails_later_is_left_out_and_told_at_the_end(own: Path, cli: Cli, method: str) -> None:
    ended = cli("train", *SHORT, MINE, f"logger.more.mine.fail={method}", f"hydra.run.dir={RUN}")
    assert ended.code == 0
    assert json.loads((own / RUN / "result.json").read_text())["status"] == "finished"
    line = f"logger.more.mine is left out: {method} fails: ConnectionError: no route to host"
    assert (own / RUN / "run.log").read_text().count(line) == 2
    assert logged(own / RUN)[-1]["test/loss"] > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("logger.more.mine._target_=mine.Kill", "a logger (lightkit.Logger)"),
        ("logger.more.mine={_target_: mine.Rows, fall: sync}", "logger.more.mine.fail"),
        ("logger.more.mine={_target_: lightkit.loggers.JsonlLogger, path: x}", "trust"),
        ("trainer.task._target_=mine.Rows", "logger.more.NAME"),
    ],
)
def test_a_node_is_checked_as_any_other(own: Path, cli: Cli, more: str, message: str) -> None:
    refused = cli("train", *SHORT, more)
    assert (refused.code, message in refused.err) == (2, True), refused.err
    assert not (own / "outputs").exists()


@pytest.mark.thorough
def test_each_member_of_an_ensemble_has_one_and_a_broken_one_ends_no_ensemble(own: Path, cli: Cli) -> None:
    fails = "logger.more.broken={_target_: mine.Rows, fail: start of 01, file: other.json}"
    size = ("ensemble=voting", "ensemble.size=2", "trainer.epochs=1", f"hydra.run.dir={RUN}")
    ended = cli("train", *SHORT, MINE, fails, *size)
    assert ended.code == 0, ended.err
    members = sorted((own / RUN / "members").iterdir())
    assert [rows(folder) for folder in members] == [logged(folder) for folder in members]
    assert len(members) == 2
    assert any("test/loss" in row for row in rows(own / RUN))
    lines = [(folder / "run.log").read_text().count("logger.more.broken is left out") for folder in members]
    assert lines == [0, 2]


@pytest.mark.thorough
def test_of_several_processes_one_writes(own: Path) -> None:
    train(own / "two", configured(MINE), 2)
    assert rows(own / "two") == logged(own / "two")
