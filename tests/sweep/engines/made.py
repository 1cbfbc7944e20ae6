"""An engine whose jobs are processes that are told how long they take and how they end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lightkit.sweep.engines.base import JobEngine
from lightkit.sweep.job import Job, Start
from tests.waiting import until

JOB = """
import os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1]); parts = here / "parts"
parts.open("a").write("begun\\n")
(here / "gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
def end(number, _):
    parts.open("a").write(f"saved at {number}\\n"); sys.exit(128 + number)
for number in (10, 15): signal.signal(number, end)
(here / "ready").touch()
end_at = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end_at and not (here / "enough").exists(): time.sleep(0.05)
sys.exit(int(sys.argv[3]))
"""
"""A job that saves at a signal, and else ends after some seconds, or when it has worked enough, with some status."""


class Sweep:
    """Jobs by name, with their seconds and exit status, and an engine made for the command that runs one."""

    def __init__(
        self,
        folder: Path,
        jobs: dict[str, tuple[float, int]],
        make: Callable[[Callable[[Start], Sequence[str]]], JobEngine],
    ) -> None:
        self.folder, self.plan, self.ended = folder, jobs, dict[str, int]()
        self.engine = make(self.command)

    def command(self, start: Start) -> Sequence[str]:
        seconds, code = self.plan[start.job.name]
        start.job.folder.mkdir(parents=True, exist_ok=True)
        program = start.job.folder / "job's program.py"
        program.write_text(JOB)
        return [sys.executable, str(program), str(start.job.folder), str(seconds), str(code)]

    def start(self, *names: str) -> None:
        for name in names:
            self.engine.start(Start(Job(name, self.folder / name, (), "")))

    def until(self, condition: Callable[[], bool]) -> None:
        def waited() -> bool:
            self.ended |= self.engine.wait(0.2)
            return condition()

        until(waited, f"the jobs; ended: {self.ended}")

    def until_ready(self, name: str) -> None:
        self.until((self.folder / name / "ready").exists)

    def parts(self, name: str) -> list[str]:
        path = self.folder / name / "parts"
        return path.read_text().splitlines() if path.exists() else []
