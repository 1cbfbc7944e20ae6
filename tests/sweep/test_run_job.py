from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.config import compose, to_yaml
from lightkit.runs.lock import lock_holder, locked
from lightkit.sweep.job import Job
from lightkit.sweep.journal import Journal
from lightkit.sweep.run_job import run_job
from lightkit.sweep.warm import TIED_TO
from tests.conftest import ROOT
from tests.waiting import until

Train = Callable[..., int]


@pytest.fixture
def folder(project: Path) -> Path:
    """The folder of a job that is planned."""
    sweep = project / "mine"
    sweep.mkdir()
    config = to_yaml(compose(["data=wine", "trainer.epochs=3"]).cfg)
    with Journal(sweep) as journal:
        journal.head(command={}, options={})
        journal.plan([Job("a", sweep / "a", ("data=wine",), config)])
    return sweep / "a"


def result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def test_it_trains_what_is_stored(folder: Path) -> None:
    calls = []

    def train(cfg: Any, place: Path, *, overrides: list[str], resume: bool) -> int:
        calls.append((cfg.trainer.epochs, cfg.trainer.stop_at, place, overrides, resume))
        assert lock_holder(place, ".job") is not None
        return 0

    assert run_job(folder, stop_at="2", train=train) == 0
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-00000001.pt").touch()
    assert run_job(folder, stop_at="30 steps", train=train) == 0
    assert run_job(folder, stop_at=None, train=train) == 0
    pauses = [(2, False), ("30 steps", True), (None, True)]
    assert calls == [(3, stop_at, folder, ["data=wine"], resume) for stop_at, resume in pauses]
    assert not (folder / "result.json").exists()


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (UserError("no such file", key="data.path"), "failed", "data.path: no such file"),
        (SystemExit(143), "interrupted", "143"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
    ],
)
def test_it_leaves_a_reason(folder: Path, error: BaseException, status: str, reason: str) -> None:
    def train(*_args: object, **_options: object) -> int:
        raise error

    with pytest.raises(type(error)):
        run_job(folder, stop_at=None, train=train)
    assert result(folder) == {"status": status, "reason": reason}
    assert f"{status}: {reason}" in (folder / "run.log").read_text()


def test_it_leaves_what_the_run_said_itself(folder: Path) -> None:
    def train(*_args: object, **_options: object) -> int:
        (folder / "result.json").write_text('{"status": "failed", "reason": "its own"}')
        raise RuntimeError("odd")

    with pytest.raises(RuntimeError):
        run_job(folder, stop_at=None, train=train)
    assert result(folder)["reason"] == "its own"
    assert run_job(folder, stop_at=None, train=lambda *_args, **_options: 7) == 7
    assert result(folder)["reason"] == "a process of the run ended with status 7"


def test_another_process_in_the_folder(folder: Path) -> None:
    folder.mkdir()
    with locked(folder, ".job"), pytest.raises(UserError, match="is running in this folder") as refused:
        run_job(folder, stop_at=None, train=lambda *_args, **_options: 0)
    assert refused.value.exit_code == 75

    def train(*_args: object, **_options: object) -> int:
        with locked(folder):
            return 0

    with locked(folder), pytest.raises(UserError, match="is running"):
        run_job(folder, stop_at=None, train=train)
    assert not (folder / "result.json").exists()


def test_what_comes_from_elsewhere_builds_nothing_odd(folder: Path) -> None:
    journal = folder.parent / "sweep.jsonl"
    text = journal.read_text()
    assert "torch.optim.AdamW" in text
    journal.write_text(text.replace("torch.optim.AdamW", "subprocess.Popen"))
    with pytest.raises(UserError, match=r"optim\._target_"):
        run_job(folder, stop_at=None, train=lambda *_args, **_options: 0)


JOB = """\
import signal, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
from lightkit.sweep.run_job import tie_to_sweep
tie_to_sweep()
signal.signal(signal.SIGHUP, lambda *_: print("saved", flush=True) or exit(0))
print("up", flush=True)
time.sleep(600)
"""
SWEEP = """\
import os, subprocess, sys, time
variables = {**os.environ, sys.argv[2]: str(os.getpid())}
subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=variables, start_new_session=True)
time.sleep(600)
"""


def test_it_saves_when_the_process_of_the_sweep_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", SWEEP, JOB, TIED_TO], stdout=file, cwd=ROOT)
    until(lambda: log.read_text() == "up\n", "the job")
    process.kill()
    process.wait()
    until(lambda: log.read_text() == "up\nsaved\n", "the job to save")


def test_without_the_process_of_the_sweep_it_does_not_begin(tmp_path: Path) -> None:
    variables = {**os.environ, TIED_TO: "1"}
    done = subprocess.run([sys.executable, "-c", JOB], env=variables, cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (129, b"")
