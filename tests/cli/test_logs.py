from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lightkit.cli import terminal
from lightkit.runs.lock import locked
from tests.conftest import Cli
from tests.detached.made import LOG, going_on, make_run, make_sweep


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
        threading.Timer(2.0, process.terminate).start()
        done = cli("logs", "-f", "-n", "1", "a")
    assert done.code == 0
    assert [line.rpartition(": ")[2] for line in done.out.splitlines()] == ["loss 0.5", "saved"]


class Interrupted:
    """Stands in for `time`: the user presses Ctrl-C while the second picture is shown."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 2:
            raise KeyboardInterrupt


def test_watching_on_a_terminal_gives_it_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "time", Interrupted())
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((80, 5)))
    terminal.watch(lambda: "\n".join(f"line {number}" for number in range(50)), 1.0, live=True)
    out = capsys.readouterr().out
    assert out.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert out.endswith("\x1b[J\x1b[?25h\x1b[?1049l")
    assert "line 1\x1b[K\n\x1b[J" in out
    assert "line 2" not in out


PLACE = "outputs/runs/2026-01-31/12-00-00-a"


def test_a_run_that_has_ended(cli: Cli, project: Path) -> None:
    make_run(project, status="failed", steps=9, reason="the loss is nan", exit_status=3)
    done = cli("attach", "last")
    assert (done.code, done.err) == (3, "")
    assert done.out == f"{PLACE} failed at step 9: the loss is nan\nwhat it told:  lightkit logs last\n"


def test_a_run_that_ends_while_it_is_shown(cli: Cli, project: Path) -> None:
    folder = make_run(project)
    with going_on(folder) as process:
        threading.Timer(0.3, process.terminate).start()
        done = cli("attach", "a")
    assert done.code == 143
    assert done.out.splitlines() == ["run     a, seed 0", "warning: few rows", "saved"]
    assert done.err == f"{PLACE} interrupted at step 7\n"


def test_ctrl_c_ends_only_what_is_shown(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    folder = make_run(project)
    monkeypatch.setattr("lightkit.detached.following.follow", interrupt)
    with locked(folder, ".job"):
        followed, done = cli("logs", "-f", "a"), cli("attach", "a")
    assert (followed.code, followed.err, done.code) == (0, "", 0)
    assert done.out.startswith(f"process {os.getpid()} builds data and model; it shows up here as soon as it trains\n")


def test_a_sweep_is_shown_as_a_whole(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = make_sweep(project, "seed=0")
    shown = list[Path]()
    monkeypatch.setattr("lightkit.cli.sweep.watch_sweep", shown.append)
    with going_on(sweep) as process:
        done = cli("attach", "grid")
        process.kill()
    assert shown == [sweep]
    assert done.err.startswith("outputs/sweeps/2026-01-31/13-00-00-grid ")
