"""What is seen of a run from outside, in folders that are made up. Real processes are in test_detach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from lightkit.detached import liveness
from lightkit.detached.liveness import look, wait_until_free
from lightkit.runs.lock import locked
from lightkit.sweep.job import Job, JobOutcome
from lightkit.sweep.journal import Journal

HOLD = """
import sys
from pathlib import Path
from lightkit.runs.lock import locked
with locked(Path(sys.argv[1]), sys.argv[2], detached=True):
    print("held", flush=True)
    sys.stdin.read()
"""
CONFIG = "name: a\ntrainer:\n  epochs: null\n  early_stopping:\n    steps: 3\n  steps: 40\nscheduler:\n  steps: 7\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run that has begun and logged something."""
    place = tmp_path / "runs" / "2026-01-31" / "12-00-00-a"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(CONFIG)
    (place / "metrics.jsonl").write_text('{"step": 8, "epoch": 1}\n{"step": 16, "epoch": 2}\n{"step": 2')
    return place


@contextmanager
def held(folder: Path, name: str = ".lock") -> Iterator[subprocess.Popen[str]]:
    """A process holds a lock; it is killed at the end."""
    command = [sys.executable, "-c", HOLD, str(folder), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the file of a lock holds whose process was killed."""
    place = tmp_path_factory.mktemp("killed")
    with held(place):
        pass
    return (place / ".lock").read_bytes()


@pytest.fixture
def killed(folder: Path, remains: bytes) -> Callable[..., None]:
    """`killed(pid=7)` leaves the run as one whose process, with these facts in the file of its lock, was killed."""

    def leave(name: str = ".lock", **facts: object) -> None:
        first, second = remains.decode().splitlines()
        (folder / name).write_text(f"{first}\n{json.dumps(json.loads(second) | facts)}\n")

    return leave


def end(folder: Path, status: str, **facts: object) -> None:
    (folder / "result.json").write_text(json.dumps({"status": status, **facts}))


def test_a_run_that_is_about_to_begin(tmp_path: Path) -> None:
    assert look(tmp_path).state == "starting"
    with locked(tmp_path, ".job", detached=True):
        standing = look(tmp_path)
        assert (standing.state, standing.pid, standing.detached) == ("starting", os.getpid(), True)
        end(tmp_path, "interrupted")
        os.utime(tmp_path / "result.json", (1, 1))  # of an earlier part
        assert look(tmp_path).state == "starting"


def test_a_run_that_goes_on(folder: Path) -> None:
    with locked(folder):
        standing = look(folder)
    assert (standing.state, standing.pid, standing.host) == ("running", os.getpid(), os.uname().nodename)
    assert (standing.step, standing.total_steps, standing.epoch) == (16, 40, 2)
    assert (standing.error, standing.detached) == ("", False)
    assert standing.started == datetime(2026, 1, 31, 12)


def test_the_process_that_is_told_of_is_the_one_that_was_there_first(folder: Path) -> None:
    """Of several processes of a run, it is the one that the others end with."""
    with held(folder, ".job") as first, locked(folder):
        standing = look(folder)
        assert (standing.state, standing.pid, standing.detached) == ("running", first.pid, True)


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_a_run_that_has_ended_in_good_order(folder: Path, status: str) -> None:
    with locked(folder, ".job"):
        with locked(folder):
            end(folder, status, steps=40, epochs=5, reason="trainer.stop_at=40 steps")
            assert look(folder).state == "running", "as long as it holds the lock"
        tidying = look(folder)
        assert (tidying.state, tidying.pid) == (status, None)
    standing = look(folder)
    assert (standing.state, standing.pid, standing.error) == (status, None, "")
    assert (standing.step, standing.epoch) == (40, 5)


def test_a_run_of_several_models_makes_no_steps_of_its_own(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    (folder / "members" / "00").mkdir(parents=True)
    (folder / "members" / "00" / "config.yaml").touch()
    end(folder, "interrupted", steps=0, epochs=0, reason="SIGTERM at step 800")
    assert look(folder).step is None


def test_a_killed_run_died_where_it_was(folder: Path) -> None:
    with held(folder) as process:
        assert look(folder).state == "running"
        process.kill()
        process.wait()
        standing = look(folder)
    assert (standing.state, standing.pid, standing.step, standing.error) == ("died", None, 16, "")


def test_a_run_that_was_killed_before_or_after_its_end(folder: Path, killed: Callable[..., None]) -> None:
    end(folder, "interrupted")
    os.utime(folder / "result.json", (1, 1))  # it went on with an earlier one
    killed(".job")
    assert look(folder).state == "died"
    killed()
    end(folder, "finished")
    assert look(folder).state == "finished"


def test_a_run_without_a_trace_of_its_process_died(folder: Path) -> None:
    """As an earlier version has left it, or a folder that was copied."""
    assert look(folder).state == "died"
    (folder / ".lock").write_text("process 4711 on host")
    assert look(folder).state == "died"
    end(folder, "finished")
    assert look(folder).state == "finished"


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, "died"),
        ({"boot": "0f0f"}, "lost"),
        ({"boot": "0f0f", "host": "elsewhere"}, "died"),
        ({"pid": os.getpid()}, "died"),  # which is another process by now
    ],
)
def test_what_the_lock_of_a_killed_process_says(
    folder: Path, killed: Callable[..., None], monkeypatch: pytest.MonkeyPatch, facts: dict[str, object], state: str
) -> None:
    killed(**facts)
    standing = look(folder)
    assert (standing.state, standing.pid, standing.host) == (state, None, facts.get("host", os.uname().nodename))
    monkeypatch.setattr(liveness, "boot_id", lambda: None)
    assert look(folder).state == "died", "a system that does not tell"


@pytest.mark.parametrize(
    ("printed", "logged", "said"),
    [
        ("epoch 1\nFatal Python error: Segmentation fault\n\n", "", "Fatal Python error: Segmentation fault"),
        ("error: a full disk\n    fix: another one\n", "", "error: a full disk"),
        ("Traceback:\n  File x\nmodule.SomeError: no\n[epoch 1] val: mean_error 0.3\n", "", "module.SomeError: no"),
        ("[epoch 1/3, step 1/3] train: error 0.3, killed 1\n", "", ""),
        ("epoch  step  val/error  train/error\n  1/3   1/3     0.5000       0.3000\n", "", ""),
        ("sh: line 1: 17 Segmentation fault (core dumped)\n", "", "sh: line 1: 17 Segmentation fault (core dumped)"),
        ("epoch 1\n", "2099-01-01 00:00:00,000 ERROR   lightkit.x: out of memory", "out of memory"),
        ("epoch 1\n", "2020-01-01 00:00:00,000 ERROR   lightkit.x: of an earlier part", ""),
        ("epoch 1\n", "2099-01-01 00:00:00,000 WARNING lightkit.x: an error bar", ""),
        ("", "", ""),
    ],
)
def test_the_last_error_of_a_run_that_died(
    folder: Path, killed: Callable[..., None], printed: str, logged: str, said: str
) -> None:
    killed()
    (folder / "output.log").write_text(printed)
    (folder / "run.log").write_text(logged + "\n")
    assert look(folder).error == said


def test_what_an_earlier_process_has_printed_is_no_error_of_this_one(folder: Path, killed: Callable[..., None]) -> None:
    (folder / "output.log").write_text("error: a full disk\n")
    os.utime(folder / "output.log", (1, 1))
    killed()
    assert look(folder).error == ""


def test_somebody_goes_on_with_a_run_while_it_is_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock was free, the result is gone: that does not make a run that died."""
    end(folder, "interrupted")
    read, stack = liveness.read_result, ExitStack()

    def gone_on(place: Path, damage: list[str]) -> dict[str, object]:
        monkeypatch.setattr(liveness, "read_result", read)
        stack.enter_context(locked(folder))
        (folder / "result.json").unlink()
        return read(place, damage)

    monkeypatch.setattr(liveness, "read_result", gone_on)
    with stack:
        assert look(folder).state == "running"


def test_waiting_for_the_end_of_a_run(folder: Path) -> None:
    assert wait_until_free(folder, timeout=0)
    with held(folder, ".job") as process:
        assert not wait_until_free(folder, timeout=0)
        assert not wait_until_free(folder, timeout=0.1)
        threading.Timer(0.2, process.kill).start()
        assert wait_until_free(folder)


Plan = Callable[..., Path]


@pytest.fixture
def sweep(tmp_path: Path) -> Plan:
    """A sweep of two jobs, each of which ended so or not at all."""

    def make(*statuses: str | None) -> Path:
        folder = tmp_path / "sweep"
        folder.mkdir()
        with Journal(folder) as journal:
            journal.head(options={})
            jobs = [Job(f"job{number}", folder / f"job{number}", (), "seed: 0\n") for number in range(len(statuses))]
            journal.plan(jobs)
            for job, status in zip(jobs, statuses):
                if status is not None:
                    journal.started(job.name, None)
                    outcome = JobOutcome(job.name, status, reason="a full disk")  # type: ignore[arg-type]
                    journal.ended(outcome, told=True)
        return folder

    return make


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        (("finished", "finished"), "finished"),
        (("finished", "pruned"), "finished"),
        (("finished", "failed"), "failed"),
        (("finished", "interrupted"), "interrupted"),
        (("finished", None), "interrupted"),
        (("failed", None), "interrupted"),
    ],
)
def test_a_sweep_that_was_let_go(sweep: Plan, statuses: tuple[str | None, ...], state: str) -> None:
    folder = sweep(*statuses)
    assert look(folder).state == state, "of a version that did not write how it came free"
    with locked(folder):
        assert (look(folder).state, look(folder).pid) == ("running", os.getpid())
    standing = look(folder)
    assert standing.state == state
    assert standing.error == ("1 of 2 jobs failed: job1: a full disk" if state == "failed" else "")


@pytest.mark.parametrize(("statuses", "state"), [(("finished", None), "died"), (("finished", "finished"), "finished")])
def test_a_sweep_whose_process_was_killed(
    sweep: Plan, remains: bytes, statuses: tuple[str | None, ...], state: str
) -> None:
    folder = sweep(*statuses)
    (folder / ".lock").write_bytes(remains)
    assert look(folder).state == state


def test_a_sweep_whose_jobs_go_on_without_it_runs(sweep: Plan) -> None:
    folder = sweep("finished", None)
    (folder / "job1").mkdir()
    with locked(folder / "job1", ".job"):
        assert (look(folder).state, look(folder).pid) == ("running", None)
    with locked(folder, ".job"):
        assert look(folder).state == "starting"


def test_a_sweep_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "sweep.jsonl").write_text("{}\n")
    standing = look(tmp_path)
    assert (standing.state, standing.error) == ("damaged", "this sweep is damaged: line 1: `event` is missing")


def test_a_run_is_described_in_a_line(folder: Path) -> None:
    end(folder, "finished", steps=16)
    assert look(folder).describe(folder.parent) == "12-00-00-a finished after 16 steps"
    end(folder, "failed", steps=8, reason="CUDA error\n    fix: a smaller batch")
    assert look(folder).describe(Path("/elsewhere")) == f"{folder} failed at step 8: CUDA error"
