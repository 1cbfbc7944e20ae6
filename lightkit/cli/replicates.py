"""Jobs of a sweep with replicates: what tables show of them, which lose the race, which keep their checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightkit.cli.terminal import number
from lightkit.common.reading import yaml_or_nothing
from lightkit.common.text import counted, format_bytes
from lightkit.config.native import replicates
from lightkit.runs.care import drop_checkpoints, users_of
from lightkit.runs.catalog import project
from lightkit.sweep.job import Job, section_of
from lightkit.sweep.journal import Record
from lightkit.sweep.replicates import ENDS, by_whole, whole_job
from lightkit.sweep.state import JobProgress, JobState

if TYPE_CHECKING:
    from lightkit.compare.statistics import MeanTest

# What computes is imported inside the functions: numpy takes its time.

_WORDS = {"pruned": "raced out", "failed": "incomplete", "starting": "running", "finished": "incomplete"}
"""What a job without a mean is called, by what its replicates are."""
_ENDED = ("finished", "pruned", "raced out")
"""What a job is that never goes on."""


def best_of(state: JobState) -> str:
    """Write the best value of a job, or the mean of its replicates: `0.9259 ± 0.2108 (n=3)`."""
    mean = f"{number(state.best)} ± {number(state.half) or '–'} (n={state.replicates})"
    return mean if state.replicates else number(state.best)


def whole_states(record: Record, states: Iterable[JobState]) -> list[JobState]:
    """Put the replicates of each job together; without replicates, return the jobs as they are.

    Args:
        record: What the journal of the sweep says.
        states: The replicates.
    """
    by_name = {state.job.name: state for state in states}
    over = section_of(section_of(record.head, "options"), "over")
    if not over or not all(isinstance(values, list) for values in over.values()):  # it may come from elsewhere
        return [*by_name.values()]
    wholes = by_whole((state.job for state in by_name.values()), over)
    return [_whole([by_name[job.name] for job in jobs], over) for jobs in wholes.values()]


def _whole(states: Sequence[JobState], over: Mapping[str, Any]) -> JobState:
    values, count = [state.best for state in states if state.best is not None], len(replicates(over))
    worst, job = min(states, key=lambda state: ENDS.index(state.status)), whole_job(states[0].job, over)
    if worst.status in ("finished", "paused") and len(values) == count:
        test = _test(job, over, values, step=0.0)
        half = None if test.high is None else test.high - test.mean
        return replace(worst, job=job, best=test.mean, half=half, replicates=count)
    done, status = sum(state.status == "finished" for state in states), _WORDS.get(worst.status, worst.status)
    place, reason = f"{done} of {count} replicates", f"{worst.job.name}: {worst.reason}" if worst.reason else ""
    return replace(worst, job=job, status=status, metric=states[0].metric, best=None, place=place, reason=reason)


def is_worse(over: Mapping[str, Any], job: Job, both: Sequence[tuple[float, float]]) -> bool:
    """Tell whether the 95 % interval of paired differences says that a job is worse than the best one.

    Blocked racing: Moore and Lee 1994, Efficient algorithms for minimizing cross validation error; F-Race decides by
    ranks in the same place (Birattari et al. 2002, A racing algorithm for configuring metaheuristics).

    Args:
        over: The replicates, `sweep.over`.
        job: The job.
        both: Of each replicate the value of the job, and of the best one.
    """
    from lightkit.compare.statistics import resolution

    sign = 1 if JobProgress(job).mode == "max" else -1
    step = resolution([value for pair in both for value in pair], None)
    test = _test(job, over, [sign * (value - best) for value, best in both], step=step)
    return test.high is not None and test.high < 0


def _test(job: Job, over: Mapping[str, Any], values: Sequence[float], *, step: float) -> MeanTest:
    """Return mean and interval of values of replicates, which have training rows in common if their splits differ."""
    from lightkit.compare.seeds import split_overlap
    from lightkit.compare.statistics import paired

    split = section_of(section_of(yaml_or_nothing(job.config), "data"), "split")
    keys = {f"data.split.{name}": value for name, value in split.items()}
    varies = any(len(over[key]) > 1 for key in over if key in keys)
    return paired(values, step=step, overlap=split_overlap(keys, JobProgress(job).metric) if varies else 0.0)


def keep_best(record: Record, states: Iterable[JobState], options: Mapping[str, Any]) -> str:
    """Delete the checkpoints of the jobs that have ended and are not among the best; returns what to tell.

    Args:
        record: What the journal of the sweep says.
        states: The jobs, their replicates put together.
        options: The section `sweep`.
    """
    sign, most = -1 if JobProgress(next(iter(record.jobs.values()))).mode == "max" else 1, options["keep_checkpoints"]
    known = {one.job.name: math.nan if one.best is None else sign * one.best for one in states if one.status in _ENDED}
    behind = sorted(known, key=lambda name: (math.isnan(known[name]), known[name]))[most:]
    jobs = by_whole(record.jobs.values(), options["over"])
    lost = {job.folder.resolve(): job for name in behind for job in jobs[name] if record.has_planned(job.name)}
    used = {folder for folder, _ in users_of([*lost], project())}
    freed = sum(map(drop_checkpoints, lost.keys() - used))
    left = f"; others build on {counted(len(used), 'job')}, whose checkpoints stay" if used else ""
    return f"sweep.keep_checkpoints={most}: {format_bytes(freed)} are free again{left}"
