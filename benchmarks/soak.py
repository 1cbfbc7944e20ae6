"""Random SIGKILLs over one run: does it still end with the same bits?

The run goes in processes of its own that are killed after a random time, wherever they are then, and started again with
`lightkit resume`. Starting a process takes longer than the run, so most of the time of a kill is drawn from when training
has begun; some are killed while they start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.verdict import compare

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


class Outcome(NamedTuple):
    """What a run lived through."""

    kills: int
    """Times it was killed."""
    starting: int
    """Of those, before the first new step."""
    survived: int
    """Times it went on from a checkpoint afterwards, or ended."""
    different: list[str]
    """What is not as in the uninterrupted run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and print what came of it; the status is 0 when nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps of the run; default: 12 a kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    options = parser.parse_args(arguments)
    base = Path(tempfile.mkdtemp(prefix="lightkit-soak-"))
    began = time.perf_counter()
    try:
        outcome = soak(base, options.kills, options.steps or 12 * options.kills, random.Random(options.seed))
    finally:
        if not options.keep:
            shutil.rmtree(base, ignore_errors=True)
    lost = outcome.kills - outcome.survived
    print(f"{outcome.kills} kills ({outcome.starting} before a new step) in {time.perf_counter() - began:.0f} s")
    print(f"survived {outcome.survived}, lost {lost}")
    print("\n".join(outcome.different) or "bit-identical with the run that was never killed")
    return int(bool(lost or outcome.different))


def soak(base: Path, kills: int, steps: int, draw: random.Random) -> Outcome:
    """One run uninterrupted, one killed again and again.

    Args:
        base: Folder to work in.
        kills: How often to kill it.
        steps: Optimizer steps of the run; enough of them are left for every kill.
        draw: Draws the moments.
    """
    whole, cut = base / "whole", base / "cut"
    cfg = compose([*OPTIONS, f"trainer.steps={steps}"]).cfg
    Runner(cfg, whole).run()
    done, starting, survived = 0, 0, 0
    while done < kills:
        before = _step(cut)
        target = before + draw.randint(0, max(1, 2 * (steps - before) // (kills - done + 1)))
        if not _killed(cfg, cut, target, draw):
            survived += done > 0
            break
        done += 1
        starting += _step(cut) <= before
        survived += _goes_on(cut)
    if _step(cut) < steps or not (cut / "result.json").exists():
        _child(cfg, cut).wait()
    different = [f"{item.name}: {item.different}" for item in compare(whole, cut) if item.different]
    return Outcome(done, starting, survived, different)


def _killed(cfg: object, folder: Path, target: int, draw: random.Random) -> bool:
    """Start or go on, and kill the process a little after it has logged something from this step on."""
    del cfg
    return _wait_and_kill(_child(cfg, folder), folder, target, draw.random() * 0.05)


def _wait_and_kill(process: subprocess.Popen[bytes], folder: Path, target: int, later: float) -> bool:
    while process.poll() is None:
        if _step(folder) >= target:
            time.sleep(later)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return process.wait() == -signal.SIGKILL
        time.sleep(0.002)
    return False
