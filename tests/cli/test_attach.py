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

from lightkit.runs.lock import locked
from tests.conftest import ROOT, Outcome
from tests.detached.made import going_on, make_run, make_sweep, write_progress
from tests.waiting import PATIENCE_SECONDS

Cli = Callable[..., Outcome]
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
