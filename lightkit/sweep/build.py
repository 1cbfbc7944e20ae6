"""Building what a sweep is made of: the engine that `sweep.engine` names, and the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.common.errors import UserError
from lightkit.config.doors import load
from lightkit.config.schema.running import HalvingConfig
from lightkit.sweep.engines.base import JobEngine, Plan
from lightkit.sweep.halving import Halving, build_halving
from lightkit.sweep.job import Job
from lightkit.sweep.journal import Record
from lightkit.sweep.search import Grid, JobSearch

ENGINE = "sweep.engine"


def survives(options: Mapping[str, Any]) -> bool:
    """Tell whether the jobs of a sweep with these options go on when its process ends, as in a queue."""
    return bool(load(ENGINE, options["engine"], JobEngine)[0].survives)


def build_engine(options: Mapping[str, Any], jobs: Sequence[Job], folder: Path, *, study: bool = False) -> JobEngine:
    """Build what `sweep.engine` names.

    Args:
        options: The section `sweep`.
        jobs: What is to run; the first one tells what each of them takes.
        folder: Folder of the sweep.
        study: Whether jobs are chosen as it goes on, by what came of those before.

    Raises:
        UserError: It cannot run these jobs.
    """
    # What comes next may depend on what came before: then a queue gets no more than there are slots.
    ahead = not study and options["on_error"] == "continue" and _race(options, jobs) is None
    engine, own = load(ENGINE, options["engine"], JobEngine)
    made: JobEngine = engine.build(Plan(options, jobs, folder, ahead), **own)
    return made


def build_search(options: Mapping[str, Any], jobs: Sequence[Job], record: Record) -> JobSearch:
    """Build what decides which jobs run, and how far.

    Args:
        options: The section `sweep`.
        jobs: Those that are planned.
        record: What the journal says.

    Raises:
        UserError: The study that it names cannot go on.
    """
    if "study" in record.head:
        from lightkit.sweep.study import build_study

        return build_study(record.head["study"], record)
    return _race(options, jobs) or Grid(jobs)


def check_race(options: Mapping[str, Any], jobs: Sequence[Job], *, study: bool) -> None:
    """Check `sweep.halving` before anything is stored.

    Args:
        options: The section `sweep`.
        jobs: Those that are planned.
        study: Whether Optuna chooses the jobs, which has pruners of its own.

    Raises:
        UserError: Its rungs make no sense for these jobs, or for a study.
    """
    if _race(options, jobs) is not None and study:
        what, fix = "a study stops jobs by a pruner", "hydra.sweeper.pruner=halving or hyperband, without sweep.halving"
        raise UserError(what, key="sweep.halving", fix=fix)


def _race(options: Mapping[str, Any], jobs: Sequence[Job]) -> Halving | None:
    return build_halving(jobs, HalvingConfig(**(options.get("halving") or {})))
