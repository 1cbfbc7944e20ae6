"""Folders of runs that are made up, and processes that behave like one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightkit.loggers import Progress
from lightkit.runs.lock import locked
from lightkit.sweep.job import Job, JobOutcome
from lightkit.sweep.journal import Journal

RUN = """
import json, signal, sys, time
from pathlib import Path
from lightkit.runs.lock import locked
folder = Path(sys.argv[1])
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
with locked(folder):
    (folder / "result.json").unlink(missing_ok=True)
    print("held", flush=True)
    while not asked:
        time.sleep(0.01)
    time.sleep(float(sys.argv[2]))
    result = {"status": "interrupted", "reason": "SIGTERM at step 7", "steps": 7, "exit_status": 143}
    result["count"] = len(asked)
    (folder / "result.json").write_text(json.dumps(result))
    with open(folder / "run.log", "a") as file:
        file.write("2026-01-31 12:00:09,000 INFO    lightkit.loggers.runlog: saved\\n")
"""
"""A run that saves when it is asked to end, which takes it some time."""
LOG = """\
2026-01-31 12:00:00,000 INFO    lightkit.loggers.runlog: run     a, seed 0
2026-01-31 12:00:01,000 WARNING lightkit.data: few rows
2026-01-31 12:00:02,000 INFO    lightkit.loggers.runlog: [epoch 1, step 8] train: loss 0.5
"""


def make_run(root: Path, name: str = "a", *, time: str = "12-00-00", status: str | None = None, **result: Any) -> Path:
    """Make the folder of a run.

    Args:
        root: The project.
        name: Name of the run.
        time: Time of day in the name of its folder.
        status: How it ended; None leaves no result.
        **result: More of its result.
    """
    folder = root.resolve() / "outputs" / "runs" / "2026-01-31" / f"{time}-{name}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"name: {name}\n")
    (folder / "run.log").write_text(LOG)
    (folder / "metrics.jsonl").write_text('{"step": 8, "epoch": 1, "train/loss": 0.5}\n')
    if status is not None:
        (folder / "result.json").write_text(json.dumps({"status": status, **result}))
    return folder


def make_sweep(root: Path, *jobs: str) -> Path:
    """Make the folder of a sweep with jobs that have finished."""
    folder = root.resolve() / "outputs" / "sweeps" / "2026-01-31" / "13-00-00-grid"
    folder.mkdir(parents=True)
    with locked(folder), Journal(folder) as journal:
        journal.head(command="train -m", options={}, time=1.0)
        made = [Job(name, folder / name, (), f"name: {name}\n") for name in jobs]
        journal.plan(made)
        for job in made:
            job.folder.mkdir()
            (job.folder / "config.yaml").write_text(job.config)
            (job.folder / "result.json").write_text('{"status": "finished", "steps": 5}')
            journal.started(job.name, None)
            journal.ended(JobOutcome(job.name, "finished", code=0), told=True)
    return folder


def write_progress(folder: Path, step: int, total_steps: int, **facts: Any) -> None:
    """Write what a run writes of its progress."""
    progress = Progress(epoch=1, epochs=3, step=step, total_steps=total_steps, batch=1, batches=4, eta_seconds=65.0)
    shown = {"written": 1.0, "share": step / total_steps, "eta_seconds": 65.0, "progress": asdict(progress)}
    (folder / ".progress.json").write_text(json.dumps({**shown, **facts}))


@contextmanager
def going_on(folder: Path, seconds: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """A process that runs in a folder, and saves for some seconds when it is asked to end."""
    command = [sys.executable, "-c", RUN, str(folder), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()
