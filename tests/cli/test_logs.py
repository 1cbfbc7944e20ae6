from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.runs.lock import locked
from tests.conftest import Outcome
from tests.detached.made import LOG, going_on, make_run

Cli = Callable[..., Outcome]


def test_the_end_of_a_log(cli: Cli, project: Path) -> None:
    make_run(project)
    assert cli("logs", "a").out == cli("logs", "-n", "all", "last").out == LOG
    assert cli("logs", "a", "--lines", "1").out == LOG.splitlines()[2] + "\n"
    assert cli("logs", "-n", "0", "a").out == ""


def test_what_a_detached_run_printed(cli: Cli, project: Path) -> None:
    folder = make_run(project)
    (folder / "output.log").write_text("Segmentation fault \x1b[2J\nno end")
    with locked(folder, ".job", detached=True):
        pass
    assert cli("logs", "a").out == "Segmentation fault \\x1b[2J\nno end\n"
    assert cli("logs", "--log", "a").out == LOG


def test_nothing_yet(cli: Cli, project: Path) -> None:
    folder = make_run(project)
    done = cli("logs", "--output", "a")
    assert (done.code, done.out) == (0, "")
    assert f"nothing is written yet: there is no {folder / 'output.log'}" in done.err


def test_following_until_the_run_ends(cli: Cli, project: Path) -> None:
    folder = make_run(project)
    with going_on(folder) as process:
        threading.Timer(0.2, process.terminate).start()
        done = cli("logs", "-f", "-n", "1", "a")
    assert done.code == 0
    assert [line.rpartition(": ")[2] for line in done.out.splitlines()] == ["loss 0.5", "saved"]


def test_ctrl_c_ends_the_following_alone(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    folder = make_run(project)
    monkeypatch.setattr("lightkit.detached.following.is_alive", interrupt)
    with locked(folder):
        done = cli("logs", "-f", "a")
    assert (done.code, done.err) == (0, "")
