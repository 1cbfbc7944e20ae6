"""Starting several processes, and what becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightkit.cli import ranks
from lightkit.cli.ranks import Launcher
from tests.waiting import PATIENCE_SECONDS


def launched(code: str, count: int = 2, log: Path | None = None) -> int:
    """Exit status of `count` processes that run Python code; `rank` and `job` are there."""
    head = "import os, sys, time, signal; rank = int(os.environ['RANK']); job = sys.stdin.readline().strip()\n"
    return Launcher([sys.executable, "-c", head + code], count, "the job").run(log)


def test_each_process_knows_which_it_is_and_what_to_do(tmp_path: Path) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    code = f"open(f'{tmp_path}/{{rank}}', 'w').write(' '.join([job, *(os.environ[n] for n in {names})]))"
    assert launched(code, 3) == 0
    found = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [row[:7] for row in found] == [["the", "job", str(r), str(r), "3", "3", "127.0.0.1"] for r in range(3)]
    assert len({row[7] for row in found}) == 1


def test_only_the_first_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    assert launched("print('out', rank); print('err', rank, file=sys.stderr)") == 0
    assert capfd.readouterr() == ("out 0\n", "err 0\n")


def test_the_one_that_failed_first_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "HUNG_SECONDS", PATIENCE_SECONDS)
    log = tmp_path / "run.log"
    log.write_text("before\n")
    code = f"""
sys.stdin.close()
if rank == 1:
    open('{tmp_path}/failing', 'w').close()
    raise RuntimeError('no such thing')
while not os.path.exists('{tmp_path}/failing'): time.sleep(0.01)
sys.exit(7)"""
    assert launched(code, 3, log) == 1
    told = capfd.readouterr().err
    assert "error: rank 1 ended with status 1\nTraceback" in told
    assert "RuntimeError: no such thing\n    fix:      `lightkit resume RUN` goes on" in told
    assert log.read_text() == f"before\n{told}"


def test_what_all_of_them_say_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert launched("sys.stderr.write('error: wrong\\n'); sys.exit(3)") == 3
    assert capfd.readouterr().err == "error: wrong\n"


def test_a_killed_process_ends_the_others(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.3)
    code = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nwhile True: signal.pause()"
    assert launched(code) == 128 + signal.SIGKILL
    assert "error: rank 1 (process" in (told := capfd.readouterr().err)
    assert "was ended by SIGKILL" in told


def test_one_that_hangs_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "HUNG_SECONDS", 0.3)
    monkeypatch.setattr(ranks, "TRACE_SECONDS", PATIENCE_SECONDS)
    code = f"""
import faulthandler; faulthandler.enable()
def stuck():
    open('{tmp_path}/stuck', 'w').close()
    while True: signal.pause()
if rank == 1: stuck()
while not os.path.exists('{tmp_path}/stuck'): time.sleep(0.01)
sys.exit(7)"""
    assert launched(code) == 128 + signal.SIGABRT
    told = capfd.readouterr().err
    assert "did not answer; this is where it was" in told
    assert "in stuck" in told


def test_one_that_was_stopped_says_where_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "HUNG_SECONDS", 0.3)
    monkeypatch.setattr(ranks, "TRACE_SECONDS", PATIENCE_SECONDS)
    code = f"""
import faulthandler, subprocess; faulthandler.enable()
def stopped():
    os.symlink(str(os.getpid()), '{tmp_path}/stopped')
    os.kill(os.getpid(), signal.SIGSTOP)
def state():
    if not os.path.islink('{tmp_path}/stopped'): return ''
    words = ['ps', '-o', 'state=', '-p', os.readlink('{tmp_path}/stopped')]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()[:1]
if rank == 1: stopped(); time.sleep(600)
while state() != 'T': time.sleep(0.01)
sys.exit(7)"""
    assert launched(code) == 128 + signal.SIGABRT
    told = capfd.readouterr().err
    assert "did not answer; this is where it was" in told
    assert "in stopped" in told


def test_a_signal_reaches_each_once(tmp_path: Path) -> None:
    code = f"""
counted = []
def note(number, frame): counted.append(number)
signal.signal(signal.SIGTERM, note)
open(f'{tmp_path}/{{rank}}', 'w').close()
while not counted: time.sleep(0.02)
time.sleep(0.3)
sys.exit(100 + len(counted))"""
    here = os.getpid()
    waiting = f"""
import os, signal, time
while not all(os.path.exists(f'{tmp_path}/{{rank}}') for rank in (0, 1)): time.sleep(0.02)
os.kill({here}, signal.SIGTERM)"""
    with subprocess.Popen([sys.executable, "-c", waiting]) as process:
        try:
            assert launched(code) == 101
        finally:
            process.kill()
