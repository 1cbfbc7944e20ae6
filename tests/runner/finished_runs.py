"""Small runs that have finished, to be combined."""

from __future__ import annotations

from pathlib import Path

from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.ensemble.finished import FinishedRun
from lightkit.runs.reading import read_run

QUICK = ["trainer.epochs=1", "logger.console.style=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]"]


def trained(folder: Path, *overrides: str) -> Path:
    """Train a run on `wine`, unless told otherwise, and return its folder."""
    Runner(compose(["data=wine", "model.hidden=[4]", *QUICK, *overrides]).cfg, folder).run()
    return folder


def member(name: str, folder: Path) -> FinishedRun:
    """Return a run as a member."""
    return FinishedRun(name, folder, read_run(folder).cfg)
