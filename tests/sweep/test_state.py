from __future__ import annotations

import json
import os
from pathlib import Path

from lightkit.runs.lock import locked
from lightkit.sweep.job import Job, JobOutcome, Start
from lightkit.sweep.journal import Record
from lightkit.sweep.state import JobProgress, look, reached

CONFIG = "metrics: {monitor: val/loss, mode: min}\ntrainer: {epochs: 4}\n"


def made(folder: Path, **result: object) -> tuple[Job, Record]:
    job = Job("a", folder / "a", (), CONFIG)
    job.folder.mkdir(exist_ok=True)
    if result:
        (job.folder / "result.json").write_text(json.dumps(result))
    return job, Record(folder, jobs={"a": job})


def test_a_job_runs_while_its_folder_is_locked(tmp_path: Path) -> None:
    job, record = made(tmp_path)
    assert look(job, record).status == "waiting"
    for name in (".job", ".lock"):
        with locked(job.folder, name):
            assert look(job, record).status == "running"
            assert look(job, record).place == f"process {os.getpid()} on {os.uname().nodename}"
        assert look(job, record).status == "waiting"


def test_a_job_that_was_killed_is_never_shown_as_running(tmp_path: Path) -> None:
    job, record = made(tmp_path)
    record.started["a"] = 100.0
    assert look(job, record).status == "interrupted"
    with locked(tmp_path):  # who has started it still waits for it to come up
        assert look(job, record).status == "starting"
        (job.folder / ".job").touch()  # it was up, and is gone
        assert look(job, record).status == "interrupted"


def test_what_the_result_says(tmp_path: Path) -> None:
    objective = {"name": "val/loss", "value": 0.25}
    job, record = made(tmp_path, status="finished", objective=objective, epochs=4, steps=40, metrics={"val/loss": 0.3})
    state = look(job, record)
    assert (state.status, state.best, state.metric, state.epoch, state.share) == ("finished", 0.25, "val/loss", 4, 1.0)
    job, record = made(tmp_path, status="failed", reason="the disk is full\nmore", epochs=1)
    assert (look(job, record).status, look(job, record).reason) == ("failed", "the disk is full")
    job, record = made(tmp_path, status="interrupted", reason="SIGTERM")
    assert look(job, record).status == "interrupted"
    record.ended["a"] = JobOutcome("a", "pruned")
    assert look(job, record).status == "pruned"


def test_a_job_that_left_nothing(tmp_path: Path) -> None:
    job, record = made(tmp_path)
    record.ended["a"] = JobOutcome("a", "failed", code=137, reason="killed by signal 9")
    state = look(job, record)
    assert (state.status, state.code, state.reason) == ("failed", 137, "killed by signal 9")


def test_whether_a_rung_is_reached(tmp_path: Path) -> None:
    job, _ = made(tmp_path)
    paused = JobOutcome("a", "paused", epoch=3, step=30)
    assert reached(paused, Start(job, "3"))
    assert not reached(paused, Start(job, "9"))
    assert reached(paused, Start(job, "30 steps"))
    assert not reached(paused, Start(job, "31 steps"))
    assert not reached(paused, Start(job))
    assert reached(JobOutcome("a", "finished"), Start(job, "9"))
    assert not reached(JobOutcome("a", "interrupted", epoch=3), Start(job, "3"))


def row(step: int, **values: float) -> str:
    return json.dumps({"step": step, "epoch": step // 10, "time": 100.0 + step, **values}) + "\n"


def test_a_resumed_job_writes_its_rows_again(tmp_path: Path) -> None:
    progress, path = JobProgress(Job("a", tmp_path, (), "")), tmp_path / "metrics.jsonl"

    def steps() -> list[int]:
        return [logged["step"] for logged in progress.look()]

    path.write_text(row(1) + row(2) + "no row\n[1]\n" + row(2, loss=1.0) + row(3))
    assert steps() == [1, 2, 2, 3]
    (tmp_path / "new").write_text(row(1) + row(2))
    (tmp_path / "new").replace(path)
    assert steps() == []
    with path.open("a") as file:
        file.write(row(2, loss=1.0) + row(3) + row(4)[:10])
    assert steps() == []
    with path.open("a") as file:
        file.write(row(4)[10:])
    assert steps() == [4]


def test_progress(tmp_path: Path) -> None:
    config = "metrics: {monitor: val/loss, mode: min}\ntrainer: {epochs: 4, steps: null}\n"
    progress = JobProgress(Job("a", tmp_path, (), config))
    progress.look()
    assert (progress.best, progress.share, progress.eta_seconds()) == (None, None, None)
    rows = [row(10, **{"val/loss": 0.5}), row(20, **{"val/loss": 0.4}), row(30, **{"val/loss": 0.6})]
    (tmp_path / "metrics.jsonl").write_text("".join(rows))
    assert len(progress.look()) == 3
    assert (progress.metric, progress.best, progress.epoch, progress.step) == ("val/loss", 0.4, 3, 30)
    assert progress.share == 0.75
    assert progress.eta_seconds() == 0.0  # those seconds have long passed
