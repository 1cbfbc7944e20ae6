"""Ensembles to be killed: one of every method, and the comparison of everything two of them left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.comparison import compare_runs, digest, flatten
from tests.resume.harness import forked

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


def go_on(cfg: Any, place: Path, *overrides: str) -> None:
    """Resume an ensemble in this process, or start it where the kill came before it had written anything."""
    if (place / run_files.CONFIG).is_file():
        Runner(load_run(place, overrides).cfg, place).run(resume=True)
    else:
        Runner(cfg, place).run()


def differences(one: Path, other: Path) -> list[str]:
    """What of two ensembles is not the same, but for the clock."""
    found = [f"{item.name}: {item.different}" for item in compare_runs(one, other) if item.different]
    first, second = (dict(flatten(json.loads((run / run_files.ENSEMBLE).read_text()), "plan")) for run in (one, other))
    return found + [key for key in {**first, **second} if digest(first.get(key)) != digest(second.get(key))]
