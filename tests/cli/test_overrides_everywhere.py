"""`device=cpu` and the like behind every command whose help takes overrides."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lightkit.cli.arguments import COMMANDS, help_of
from tests.conftest import Cli
from tests.runner.finished_runs import trained as finished

_SHORT = ("data=wine", "trainer.epochs=1", "model.hidden=[4]", "logger.tensorboard.enabled=false", "metrics.figures=[]")
CALLS = {
    "train": (("train", *_SHORT), ("train", "--from", "a", "trainer.epochs=1")),
    "resume": (("resume", "a"), ("resume", "a", "trainer.epochs=2")),
    "eval": (("eval", "a"),),
    "predict": (("predict", "a"),),
    "params": (("params", "a"),),
    "calibrate": (("calibrate", "a", "--split", "test"),),
    "report": (("report", "a", "--seconds", "0"),),
    "ensemble": (("ensemble", "a", "b"),),
    "compare": (("compare", "a", "b", "--rows", "test"),),
    "export": (("export", "a", "model.pt2"),),
    "config": (("config", "data=wine"),),
    "plan": (("plan", *_SHORT), ("plan", "--from", "a")),
    "summary": (("summary", "--from", "a"),),
    "graph": (("graph", *_SHORT, "--output", "model.dot"),),
    "show": (("show", "results", "a"), ("show", "data", *_SHORT)),
    "doctor": (("doctor", *_SHORT),),
    "find": (("find", "workers", *_SHORT), ("find", "lr", "--from", "a")),
    "rerun": (("rerun", "a"),),
    "verify-resume": (("verify-resume", *_SHORT),),
}
SLOW = ("show", "export", "doctor", "find", "verify-resume", "rerun")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    finished(folder / "a")
    finished(folder / "b", "trainer.clip_norm=1")
    return folder


@pytest.fixture
def runs(project: Path, made: Path) -> None:
    shutil.copytree(made, project / "outputs" / "runs")


def test_each_command_with_overrides_is_tried() -> None:
    assert {name for name in COMMANDS if "OVERRIDES" in help_of(name)} == CALLS.keys()


def test_a_device_is_an_override_of_every_command_that_takes_any(cli: Cli, runs: None) -> None:
    for words in (words for command in CALLS.values() for words in command):
        done = cli(*words, "device=cpu", "device.zebra=1")
        lines = done.err.splitlines()
        assert (done.code, lines[0], "1 problem found" in lines) == (2, "error: device.zebra: unknown key", True), (
            done.err
        )


@pytest.mark.parametrize("command", CALLS)
@pytest.mark.thorough(first=4)
def test_a_device_of_another_name_is_told_by_each(cli: Cli, runs: None, command: str) -> None:
    for words in CALLS[command]:
        wrong = cli(*words, "device=gpu")
        assert (wrong.code, "    fix:      device=cuda" in wrong.err.splitlines()) == (2, True), wrong.err


@pytest.mark.parametrize("command", [name for name in CALLS if name not in SLOW])
@pytest.mark.thorough
def test_and_the_command_works_with_it(cli: Cli, runs: None, command: str) -> None:
    for words in CALLS[command]:
        done = cli(*words, "device=cpu")
        assert (done.code, "error" in done.err) == (0, False), done.err
