"""What a sweep tries next: every combination of a grid, the survivors of a rung, what a sampler suggests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from lightkit.sweep.job import Job, JobOutcome, Start


class JobSearch(Protocol):
    """Name the jobs of a sweep as it goes on.

    What it names follows from the outcomes that it was told, in their order, and from nothing else: a repeated sweep
    tells them again from its journal and goes on where it was. A job that was interrupted has no outcome, and is named
    again.
    """

    tries_failed_again: bool
    """Whether a repeated sweep names failed jobs again. Not where what came after followed from their failure."""

    def next(self, room: int) -> Sequence[Start]:
        """Name at most `room` jobs that can start now; none while it waits for outcomes, or at the end.

        A job is named again after it has paused, when it is to go on.
        """
        ...

    def tell(self, outcome: JobOutcome) -> None:
        """Take how a job, or a part of it, ended. Failed jobs are told once they are not tried again."""
        ...

    def watch(self, name: str, row: Mapping[str, Any]) -> bool:
        """Take a row of a running job's `metrics.jsonl`; return whether it promises so little that it is to stop."""
        ...

    @property
    def ended(self) -> bool:
        """Tell whether nothing will be named any more."""
        ...


@runtime_checkable
class Race(Protocol):
    """A search that gives jobs up which have paused."""

    def out_of_race(self) -> Sequence[str]:
        """Return the jobs that have paused and never go on: their checkpoints are of no use any more."""
        ...

    def leave_out(self, names: Iterable[str]) -> None:
        """Never name jobs whose checkpoints are gone, after what they came to before was told."""
        ...


class Grid:
    """Run each of a list of jobs once.

    Args:
        jobs: In the order in which they start.
    """

    tries_failed_again = True

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting = list(jobs)

    def next(self, room: int) -> Sequence[Start]:
        """Name the next jobs of the list."""
        named, self._waiting = self._waiting[:room], self._waiting[room:]
        return [Start(job) for job in named]

    def tell(self, outcome: JobOutcome) -> None:
        """Take an outcome: a job that has one, from an earlier part of the sweep, is not named any more."""
        self._waiting = [job for job in self._waiting if job.name != outcome.name]

    def watch(self, name: str, row: Mapping[str, Any]) -> bool:
        """Let every job run."""
        return False

    @property
    def ended(self) -> bool:
        """Tell whether all have been named."""
        return not self._waiting
