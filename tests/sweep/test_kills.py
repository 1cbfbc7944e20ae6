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

import pytest

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
                holder = re.fullmatch(r"process (\d+) on .*", state.place)
                is_alive = holder is None or lives(int(holder[1])) or look(job, record).status != "running"
                assert is_alive, f"{job.name} is shown as running in {state.place}"
            path = job.folder / "result.json"
            if state.status == "finished":
                facts = path.stat()
                mark = (facts.st_ino, facts.st_mtime_ns)
                assert self.finished.setdefault(job.name, mark) == mark, f"{job.name} ran again"
            assert state.status == "finished" or job.name not in self.finished, f"{job.name} runs again"

    def running_jobs(self) -> list[int]:
        """Processes of the jobs that run."""
        texts = [path.read_text() for path in sorted(self.folder.glob("seed=*/.job"))]
        named = [int(holder[1]) for text in texts if (holder := re.match(r"process (\d+) ", text))]
        return [pid for pid in named if lives(pid)]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """What a job has logged, but for the times."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line).items() for line in lines]
        return [
            {key: value for key, value in row if key != "time" and not key.startswith(("speed/", "system/"))}
            for row in rows
        ]


def kill_at_random(sweep: Sweep, kills: int, seed: int) -> None:
    """Kill the process of the sweep, or that of a job, so often; then let it finish."""
    draw = random.Random(seed)
    running = sweep.start()
    for _ in range(kills):
        until(lambda running=running: sweep.running_jobs() or running.code is not None, "a job to run")
        time.sleep(draw.uniform(0.0, 1.2))
        jobs = sweep.running_jobs()
        victim = draw.choice(jobs) if jobs and draw.random() < 0.5 else running.pid
        if running.code is None:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        sweep.check()
        if victim == running.pid or running.code is not None:
            running.wait()
            sweep.check()
            running = sweep.start()
    code = running.wait()
    while code:  # a job that was killed has failed: the command tries it again
        code = sweep.start().wait()
    sweep.check()


def lives(pid: int) -> bool:
    """Tell whether any thread of a process lives: files stay locked until the last one has ended."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] not in ("Z", "X"):
                return True
    return False


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sweep_survives_kills(warm: Warm, project: Path) -> None:
    whole, killed = Sweep(warm, project, "whole", 4), Sweep(warm, project, "killed", 4)
    assert whole.start().wait() == 0
    kill_at_random(killed, kills=4, seed=0)
    for number in range(whole.jobs):
        name = f"seed={number}"
        assert killed.rows(name) == whole.rows(name), f"{name} has logged something else"
        weights = [(sweep.folder / name / "weights.safetensors").read_bytes() for sweep in (killed, whole)]
        assert weights[0] == weights[1], f"{name} has other weights"
    assert (killed.folder / "results.csv").read_text().count("done") == 4
