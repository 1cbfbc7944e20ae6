"""A sweep whose processes are killed at random, and repeated until it has finished."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.sweep.journal import read_journal
from lightkit.sweep.state import look
from tests.waiting import until
from tests.warm import Running, Warm

SMALL = (
    "data=wine", "model.hidden=[8]", "model.dropout=0.1", "trainer.epochs=8", "device=cpu", "device.threads=1",
    "logger.every_steps=1", "metrics.figures=[]", "checkpoint.export=safetensors", "checkpoint.every_steps=3",
    "sweep.slots=2",
)  # fmt: skip


class Sweep:
    """A sweep in a folder of a project.

    Args:
        warm: Starts its process.
        project: Working directory.
        name: Folder of the sweep.
        jobs: Number of jobs.
    """

    def __init__(self, warm: Warm, project: Path, name: str, jobs: int) -> None:
        self.warm, self.project, self.folder, self.jobs = warm, project, project / name, jobs
        self.finished: dict[str, tuple[int, int]] = {}
        """Number and time of the results of jobs that have finished."""

    def start(self) -> Running:
        """Start the command, which is always the same."""
        args = ["train", "-m", *SMALL, f"seed=range({self.jobs})", f"hydra.sweep.dir={self.folder.name}"]
        with open(os.devnull) as none, (self.project / f"{self.folder.name}.txt").open("a") as out:
            return self.warm.start(args, self.project, [none.fileno(), out.fileno(), out.fileno()])

    def check(self) -> None:
        """Look at all jobs: those shown as running run, and those that have finished stay as they are."""
        record = read_journal(self.folder)
        for job in record.jobs.values():
            state = look(job, record)
            if state.status == "running":
                found = re.fullmatch(r"process (\d+) on .*", state.place)
                alive = found is None or _lives(int(found[1])) or look(job, record).status != "running"
                assert alive, f"{job.name} is shown as running in {state.place}"
            path = job.folder / "result.json"
            if state.status == "finished":
                facts = path.stat()
                mark = (facts.st_ino, facts.st_mtime_ns)
                assert self.finished.setdefault(job.name, mark) == mark, f"{job.name} ran again"
            assert state.status == "finished" or job.name not in self.finished, f"{job.name} runs again"

    def running_jobs(self) -> list[int]:
        """Processes of the jobs that run."""
        return [pid for name in sorted(self.folder.glob("seed=*/.job")) if (pid := _holder(name))]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """What a job has logged, but for the times."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line).items() for line in lines]
        return [{key: value for key, value in row if key != "time" and not key.startswith("speed/")} for row in rows]


def kill_at_random(sweep: Sweep, kills: int, seed: int) -> dict[str, int]:
    """Kill the process of the sweep, or that of a job, until enough have been killed; then let it finish.

    Returns:
        How many of each kind were killed.
    """
    draw, counts = random.Random(seed), {"sweep": 0, "job": 0}
    running = sweep.start()
    while sum(counts.values()) < kills:
        _wait_for_job(sweep, running)
        time.sleep(draw.uniform(0.0, 1.2))
        jobs = sweep.running_jobs()
        victim, kind = (draw.choice(jobs), "job") if jobs and draw.random() < 0.5 else (running.pid, "sweep")
        if running.code is None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                counts[kind] += 1
        sweep.check()
        if kind == "sweep" or running.code is not None:
            running.wait()
            sweep.check()
            if len(sweep.finished) == sweep.jobs:
                break
            running = sweep.start()
    code = running.wait()
    while code:  # a job that was killed has failed: the command tries it again
        code = sweep.start().wait()
    sweep.check()
    return counts


def _wait_for_job(sweep: Sweep, running: Running) -> None:
    until(lambda: sweep.running_jobs() or running.code is not None, "a job to run")


def compare(killed: Sweep, whole: Sweep) -> None:
    """Compare what two sweeps have left, bit by bit."""
    for number in range(whole.jobs):
        name = f"seed={number}"
        assert killed.rows(name) == whole.rows(name), f"{name} has logged something else"
        weights = [(sweep.folder / name / "weights.safetensors").read_bytes() for sweep in (killed, whole)]
        assert weights[0] == weights[1], f"{name} has other weights"


def _holder(path: Path) -> int | None:
    found = re.match(r"process (\d+) ", path.read_text())
    return int(found[1]) if found and _lives(int(found[1])) else None


def _lives(pid: int) -> bool:
    """Tell whether any thread of a process lives: files stay locked until the last one has ended."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X"):
                return True
    return False
