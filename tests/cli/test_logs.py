from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.cli import logs
from lightkit.common.errors import UserError
from lightkit.runs.lock import locked
from tests.conftest import ROOT, Outcome
from tests.detached.made import LOG, going_on, make_run, make_sweep, write_progress
from tests.waiting import PATIENCE_SECONDS

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
    monkeypatch.setattr(logs, "time", Interrupted())
    monkeypatch.setattr(logs.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((80, 5)))
    logs.watch(lambda: "\n".join(f"line {number}" for number in range(50)), 1.0, live=True)
    out = capsys.readouterr().out
    assert out.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert out.endswith("\x1b[J\x1b[?25h\x1b[?1049l")
    assert "line 1\x1b[K\n\x1b[J" in out
    assert "line 2" not in out


def test_elsewhere_each_has_its_time_unless_a_program_reads_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stamped in (True, False):
        monkeypatch.setattr(logs, "time", Interrupted())
        logs.watch(lambda: "text", 1.0, live=False, stamped=stamped)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("  text")
    assert first[2] == ":"
    assert last == "text"


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "0.01"])
def test_no_time(text: str) -> None:
    assert logs.read_seconds("0.5") == 0.5
    with pytest.raises(UserError, match="not a time"):
        logs.read_seconds(text)


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


def test_a_run_that_is_about_to_begin(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    folder = make_run(project)
    monkeypatch.setattr("lightkit.detached.following.follow", interrupt)
    with locked(folder, ".job"):
        done = cli("attach", "a")
    assert done.code == 0
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


def read_until(terminal: int, text: str) -> str:
    found, end = b"", time.monotonic() + PATIENCE_SECONDS
    while text.encode() not in found:
        assert time.monotonic() < end, f"waited for {text!r} in {found!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                found += os.read(terminal, 65536)
            except OSError:
                break
    return found.decode(errors="replace")


def test_ctrl_c_on_a_terminal_leaves_the_run_alone(project: Path) -> None:
    folder = make_run(project)
    write_progress(folder, 12, 24)
    with going_on(folder) as process:
        ours, theirs = pty.openpty()
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
        command = [sys.executable, "-m", "lightkit", "attach", "a"]
        options = {"cwd": project, "env": variables, "start_new_session": True}
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **options) as attached:  # type: ignore[call-overload]
            os.close(theirs)
            shown = read_until(ours, "12/24")
            attached.send_signal(signal.SIGINT)
            shown += read_until(ours, "lightkit stop a")
            assert attached.wait() == 0
        os.close(ours)
        assert process.poll() is None
    assert "run     a, seed 0" in shown
    assert "epoch 1/3" in shown
    assert "detached, and it goes on; back to it:  lightkit attach a" in shown
    assert "\x1b[?25h" in shown, "the cursor is back"
