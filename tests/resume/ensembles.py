"""Ensembles to be killed: one of every method, and the comparison of everything two of them left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.proving.comparison import compare_runs, flatten, same_bits
from tests.resume.harness import _child, forked

BASE = (
    "data=wine",
    "model.hidden=[8]",
    "model.dropout=0.2",
    "data.batch_size=16",
    "trainer.epochs=2",
    "checkpoint.every_steps=3",
    "optim.lr=0.01",
    "logger.console.style=quiet",
    "logger.every_steps=2",
    "logger.tensorboard.enabled=false",
    "metrics.figures=[]",
    "device=cpu",
)
METHODS: dict[str, tuple[str, ...]] = {
    "voting": ("ensemble=voting", "ensemble.size=3", "ensemble.weights=validation"),
    "bagging": ("ensemble=bagging", "ensemble.size=3"),
    "folds": ("ensemble=bagging", "ensemble.resample=folds", "ensemble.folds=2", "ensemble.repeats=2"),
    "fusion": ("ensemble=fusion", "ensemble.size=2"),
    "gradient_boosting": (
        "ensemble=gradient_boosting",
        "ensemble.size=3",
        "ensemble.shrinkage=0.5",
        "ensemble.patience=null",
    ),
    "soft_gradient_boosting": ("ensemble=soft_gradient_boosting", "ensemble.size=2"),
    "snapshot": ("ensemble=snapshot", "ensemble.size=3", "trainer.epochs=6"),
    "fast_geometric": ("ensemble=fast_geometric", "ensemble.size=2", "ensemble.cycle_epochs=2"),
    "adversarial": ("ensemble=adversarial", "ensemble.size=2", "data.normalize=minmax"),
    "greedy": ("ensemble=greedy", "ensemble.size=3"),
    "stacking": (
        "ensemble=stacking",
        "ensemble.members=[{model.hidden: [8]}, {model.hidden: []}]",
        "ensemble.folds=2",
        "ensemble.meta.trainer.steps=40",
        "ensemble.solver=gradient",
    ),
}


def config(method: str, *more: str) -> Any:
    """Compose an ensemble of a method."""
    return compose([*BASE, *METHODS[method], *more]).cfg


def train(cfg: Any, place: Path) -> None:
    """Train an ensemble in another process."""
    forked(lambda: Runner(cfg, place).run(), place.with_name(f"{place.name}.log"))


def kill_after(job: Callable[[], Any], seconds: float, log: Path) -> bool:
    """Do a job in another process, and kill it after some time; tells whether it was still at it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _child(job, log)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def go_on(cfg: Any, place: Path, *overrides: str) -> None:
    """Resume an ensemble in this process, or start it where the kill came before it had written anything."""
    if (place / run_files.CONFIG).is_file():
        Runner(load_run(place, overrides).cfg, place).run(resume=True)
    else:
        Runner(cfg, place).run()


def kill_somewhere(cfg: Any, place: Path, seconds: float, draw: random.Random) -> int:
    """Train an ensemble that is killed at random moments, and go on until it has finished; returns the kills.

    Args:
        cfg: Its configuration.
        place: Its folder.
        seconds: How long it takes without a kill.
        draw: Draws the moments.
    """
    log = place.with_name(f"{place.name}.log")
    kills = int(kill_after(lambda: Runner(cfg, place).run(), draw.uniform(0, seconds), log))
    if kills and draw.random() < 0.3:
        kills += kill_after(lambda: go_on(cfg, place), draw.uniform(0, seconds), log)
    forked(lambda: go_on(cfg, place), log)
    return kills


def differences(one: Path, other: Path) -> list[str]:
    """What of two ensembles is not the same, but for the clock."""
    found = [f"{item.name}: {item.different}" for item in compare_runs(one, other) if item.different]
    first, second = (dict(flatten(json.loads((run / run_files.ENSEMBLE).read_text()), "plan")) for run in (one, other))
    return found + [key for key in {**first, **second} if not same_bits(first.get(key), second.get(key))]
