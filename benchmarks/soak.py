"""Random SIGKILLs over one run: does it still end with the same bits?

The run goes in processes of its own that are killed wherever they are at a random moment, loader workers and all, and
started again with the same command, `lightkit train ... resume=auto`. Most moments lie after a random step, as starting
takes longer than training; every eighth or so lies within the first seconds, while a process starts and loads.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lightkit.runner.comparison import compare_runs
from lightkit.runs.reading import read_jsonl

OPTIONS = (
    "data=wine",
    "data.batch_size=8",
    "model.hidden=[16]",
    "model.dropout=0.2",
    "trainer.accumulate=2",
    "trainer.ema.decay=0.9",
    "trainer.early_stopping.patience=100000",
    "trainer.validate_unit=step",
    "trainer.validate_every=7",
    "data.augment=[{_target_: lightkit.data.transforms.GaussianNoise}]",
    "scheduler=plateau",
    "checkpoint.every_steps=5",
    "logger.every_steps=3",
    "logger.console.style=quiet",
    "metrics.figures=[]",
    "device=cpu",
    "device.threads=1",
)


STARTING, STARTING_SECONDS = 1 / 8, 3.0


class Outcome(NamedTuple):
    """What a run lived through."""

    kills: int
    """Times it was killed."""
    early: int
    """Of those, before it had taken a step that was logged."""
    lost: int
    """Times it could not go on by itself afterwards."""
    different: list[str]
    """What is not as in the uninterrupted run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and print what came of it; the status is 0 when nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps of the run; default: 12 a kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lightkit-soak-") as base:
        steps = options.steps or 12 * options.kills
        outcome = soak(Path(base), options.kills, steps, random.Random(options.seed))
    print(f"{outcome.kills} kills, {outcome.early} of them before a new step, in {time.perf_counter() - began:.0f} s")
    print(f"survived {outcome.kills - outcome.lost}, lost {outcome.lost}")
    print("\n".join(outcome.different) or f"after {steps} steps bit-identical with the run that was never killed")
    return int(bool(outcome.lost or outcome.different))


def soak(base: Path, kills: int, steps: int, draw: random.Random) -> Outcome:
    """One run uninterrupted, one killed again and again.

    Args:
        base: Folder to work in.
        kills: How often to kill it.
        steps: Optimizer steps of the run, shared out over the kills.
        draw: Draws the moments.
    """
    whole, cut = base / "whole", base / "cut"
    _start(whole, steps, base / "log").wait()
    done, early, lost = 0, 0, 0
    while done < kills:
        before = _step(cut)
        target = before + draw.randint(1, max(1, 2 * (steps - before) // (kills - done + 1)))
        process = _start(cut, steps, base / "log")
        if not _killed(process, cut, None if draw.random() < STARTING else target, draw):
            lost += process.returncode != 0
            break
        done += 1
        early += _step(cut) <= before
    code = _start(cut, steps, base / "log").wait()
    different = [f"{item.name}: {item.different}" for item in compare_runs(whole, cut) if item.different]
    if code:
        different.insert(0, (base / "log").read_text())
    return Outcome(done, early, lost + (code != 0), different)


def _start(folder: Path, steps: int, log: Path) -> subprocess.Popen[bytes]:
    """A process that trains in the folder, or goes on there: the same command every time."""
    command = [sys.executable, "-m", "lightkit", "train", *OPTIONS, f"trainer.steps={steps}", "resume=auto"]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, f"hydra.run.dir={folder}"], stdout=output, stderr=output, start_new_session=True
        )


def _killed(process: subprocess.Popen[bytes], folder: Path, target: int | None, draw: random.Random) -> bool:
    """Kill it a little after it has logged a step, or after a random time; False when it has ended before."""
    deadline = time.monotonic() + (600 if target else draw.random() * STARTING_SECONDS)
    while time.monotonic() < deadline and (target is None or _step(folder) < target):
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    time.sleep(draw.random() * 0.03)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def _step(folder: Path) -> int:
    """The last step that was logged."""
    rows = read_jsonl(folder / "metrics.jsonl")
    return rows[-1]["step"] if rows else 0


if __name__ == "__main__":
    sys.exit(main())
