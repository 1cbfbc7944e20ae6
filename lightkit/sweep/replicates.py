"""Jobs that run several times, with other seeds and folds: a search takes each of them as one, by its mean."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from lightkit.common.ranking import improves
from lightkit.config.native import replicates
from lightkit.sweep.job import Job, JobOutcome, JobSearch, Start
from lightkit.sweep.state import JobProgress

IsWorse = Callable[[Job, Sequence[tuple[float, float]]], bool]
"""Tells whether a job is worse than the best one, by the values of both with the same seeds and folds."""
ENDS = ("pruned", "failed", "stopped", "running", "starting", "queued", "interrupted", "waiting", "paused", "finished")
"""A job is what comes first here of the statuses of its replicates."""


def whole_job(replicate: Job, over: Collection[str]) -> Job:
    """Return the job that a replicate is one of, without the values of the replicate."""
    own = tuple(text for text in replicate.overrides if text.lstrip("+~").partition("=")[0] not in over)
    name = split_name(replicate.name, over)[0]
    return replace(replicate, name=name, folder=replicate.folder.with_name(Path(name).name), overrides=own)


def by_whole(jobs: Iterable[Job], over: Collection[str]) -> dict[str, list[Job]]:
    """Sort replicates by the name of the job that they are of."""
    found = defaultdict[str, list[Job]](list)
    for job in jobs:
        found[split_name(job.name, over)[0]].append(job)
    return found


def split_name(name: str, over: Collection[str]) -> tuple[str, str]:
    """Split the name of a replicate into that of its job and its own."""
    whole, *own = name.rsplit(",", len(over))
    return whole, ",".join(own)


class Replicated(JobSearch):
    """Let a search judge jobs by the means of their replicates.

    It names the replicates of what the search names, and tells it one outcome once all of them have come there: their
    mean, or that one of them has failed. A job that loses the race before has no mean: what it lacks does not run.

    Args:
        search: Names whole jobs. It sees the value of each replicate at its end as that of a step, and may prune.
        jobs: The replicates of each job by its name, those included that the search makes as it goes on.
        options: The section `sweep`.
        is_worse: Decides the race of `sweep.race`.
    """

    def __init__(
        self, search: JobSearch, jobs: Mapping[str, list[Job]], options: Mapping[str, Any], is_worse: IsWorse
    ) -> None:
        self.search, self.tries_failed_again, self._is_worse = search, search.tries_failed_again, is_worse
        self._jobs, self._over, self._least = jobs, options["over"], options["race"] or math.inf
        self._names, self._queue, self._lost = [*replicates(self._over)], list[Start](), set[str]()
        self._came = defaultdict[str, dict[str, JobOutcome]](dict)
        self._best: float | None = None
        self._values = dict[str, float]()

    def next(self, room: int) -> Sequence[Start]:
        """Name the replicates of a job before those of the next one."""
        while len(self._queue) < room and (named := self.search.next(1)):
            came = self._came[named[0].job.name]
            own = {split_name(job.name, self._over)[1]: job for job in self._jobs[named[0].job.name]}
            self._queue += [replace(named[0], job=job) for name, job in own.items() if name not in came]
        given, self._queue = self._queue[:room], self._queue[room:]
        return [replace(start, given_up=self.watch(start.job.name, {})) for start in given]

    def tell(self, outcome: JobOutcome) -> None:
        """Take the outcome of a replicate; the search is told once the job has those of all."""
        name, own = split_name(outcome.name, self._over)
        if own not in self._names:  # of a sweep that had others
            return
        came, progress = self._came[name], JobProgress(self._jobs[name][0])
        self._queue = [start for start in self._queue if start.job.name != outcome.name]
        came[own] = outcome
        ended = {own: one.values for own, one in came.items() if one.status == "finished" and "objective" in one.values}
        values = {own: found["objective"] for own, found in ended.items()}
        if len(came) < len(self._names):
            row = {progress.metric: values.get(own), "step": self._names.index(own) + 1}
            if self.search.watch(name, row) or self._is_behind(self._jobs[name][0], values):
                self._lost.add(name)
            return
        told = _mean(name, [*self._came.pop(name).values()])
        mean = told.values.get("objective", math.nan)
        if told.status == "finished" and improves(mean, self._best, mode=progress.mode):
            self._best, self._values = mean, values
        self.search.tell(told)

    def watch(self, name: str, row: Mapping[str, Any]) -> bool:
        """Tell whether the job of a replicate has lost the race."""
        return split_name(name, self._over)[0] in self._lost

    @property
    def ended(self) -> bool:
        """Tell whether the search has ended."""
        return self.search.ended

    def out_of_race(self) -> list[str]:
        """Return the replicates of jobs that have paused and never go on."""
        return [job.name for name in self.search.out_of_race() for job in self._jobs[name]]

    def leave_out(self, names: Iterable[str]) -> None:
        """Never name jobs of whose replicates checkpoints are gone."""
        self.search.leave_out({split_name(name, self._over)[0] for name in names})

    def _is_behind(self, job: Job, values: Mapping[str, float]) -> bool:
        """Tell whether the race is over for a job whose replicates have these values so far."""
        both = [(value, self._values[own]) for own, value in values.items() if own in self._values]
        return len(both) >= self._least and self._is_worse(job, both)


def _mean(name: str, outcomes: Sequence[JobOutcome]) -> JobOutcome:
    """Return the outcome of a job: the means of its replicates, which end as the one that came least far."""
    worst = min(outcomes, key=lambda outcome: ENDS.index(outcome.status))
    shared = {*worst.values}.intersection(*(outcome.values for outcome in outcomes))
    means = {key: fmean(outcome.values[key] for outcome in outcomes) for key in shared}
    epoch, step = (min(getattr(outcome, unit) for outcome in outcomes) for unit in ("epoch", "step"))
    return replace(worst, name=name, values=means, epoch=epoch, step=step)
