"""A job of a sweep, and what became of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.names import folder_below, same_name
from lightkit.config.project import is_run, project_root

Status = Literal["finished", "paused", "pruned", "stopped", "failed", "interrupted"]
"""How a job ended: at its end, at a rung (`trainer.stop_at`), stopped as it promised little, or as somebody asked for
its end alone, by an error, by a signal."""


@dataclass(frozen=True)
class Job:
    """A run that a sweep has planned: what it trains is fixed before it starts.

    Attributes:
        name: Name of its folder, which tells its overrides from those of the other jobs.
        folder: Where it runs; absolute.
        overrides: What was typed for it.
        config: Its whole configuration as YAML.
        environment: Variables of its process (`hydra.job.env_set`).
    """

    name: str
    folder: Path
    overrides: tuple[str, ...]
    config: str
    environment: Mapping[str, str] = field(default_factory=dict)


def section_of(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of the configuration of a job; empty where there is none."""
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Start:
    """A job that is to start, or to go on, now.

    Attributes:
        job: The job.
        stop_at: Where it pauses, as `trainer.stop_at` takes it (epochs, such as `3`, or `300 steps`); None runs to its
            end.
        given_up: It does not start, and ends as pruned: others have shown that it promises too little.
    """

    job: Job
    stop_at: str | None = None
    given_up: bool = False


@dataclass(frozen=True)
class JobOutcome:
    """How a part of a job ended.

    Attributes:
        name: The job's.
        status: How.
        values: The last values by name, such as `val/accuracy`; `objective` is the best of the monitored one.
        epoch: Epochs done.
        step: Optimizer steps done.
        code: Exit status of its process; None where nobody saw it end.
        reason: Why it failed, in a line; empty where it did not.
    """

    name: str
    status: Status
    values: Mapping[str, float] = field(default_factory=dict)
    epoch: int = 0
    step: int = 0
    code: int | None = 0
    reason: str = ""


class JobSearch(Protocol):
    """Name the jobs of a sweep as it goes on.

    What it names follows from the outcomes that it was told, in their order, and from nothing else: a repeated sweep
    tells them again from its journal and goes on where it was. A job that was interrupted has no outcome, and is named
    again.
    """

    tries_failed_again: bool = True
    """Whether a repeated sweep names failed jobs again. Not where what came after followed from their failure."""

    def next(self, room: int) -> Sequence[Start]:
        """Name at most `room` jobs that can start now; none while it waits for outcomes, or at the end.

        A job is named again after it has paused, when it is to go on.
        """

    def tell(self, outcome: JobOutcome) -> None:
        """Take how a job, or a part of it, ended. Failed jobs are told once they are not tried again."""

    def watch(self, name: str, row: Mapping[str, Any]) -> bool:
        """Take a row of a running job's `metrics.jsonl`; return whether it promises so little that it is to stop."""
        return False

    @property
    def ended(self) -> bool:
        """Tell whether nothing will be named any more."""

    def out_of_race(self) -> Sequence[str]:
        """Return the jobs that have paused and never go on: their checkpoints are of no use any more."""
        return ()

    def leave_out(self, names: Iterable[str]) -> None:
        """Never name jobs whose checkpoints are gone, after what they came to before was told."""
        return


class Grid(JobSearch):
    """Run each of a list of jobs once.

    Args:
        jobs: In the order in which they start.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting = list(jobs)

    def next(self, room: int) -> Sequence[Start]:
        """Name the next jobs of the list."""
        named, self._waiting = self._waiting[:room], self._waiting[room:]
        return [Start(job) for job in named]

    def tell(self, outcome: JobOutcome) -> None:
        """Take an outcome: a job that has one, from an earlier part of the sweep, is not named any more."""
        self._waiting = [job for job in self._waiting if job.name != outcome.name]

    @property
    def ended(self) -> bool:
        """Tell whether all have been named."""
        return not self._waiting


_OF_JOBS = (
    run_files.JOB_LOCK,
    run_files.LOCK,
    run_files.OUTPUT_LOG,
    run_files.LOG,
    run_files.RESULT,
    run_files.METRICS,
    run_files.CHECKPOINTS,
)
"""Each of these shows that a folder is that of a job, also of one that was killed at once."""


class JobPlaces:
    """Where the jobs of a sweep run.

    Args:
        home: Folder of the sweep.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._names = dict[str, str]()
        self._own, self._around = set[str](), set[str]()

    def place(self, name: object) -> Path:
        """Return the folder of a job that a file names.

        Args:
            name: Its name; several names with slashes between them are folders in each other.

        Raises:
            UserError: It is no name, or no folder of its own below that of the sweep.
        """
        key = str(self.home / run_files.SWEEP_JOURNAL)
        expected = "the name of a job's folder, below that of the sweep"
        folder = folder_below(self.home, name, key=key, expected=expected, taken=run_files.SWEEP_OWN, nested=True)
        own = str(name)
        above = {str(path) for path in PurePosixPath(own).parents} - {"."}
        inside = above & self._own or any(is_run(self.home / path) for path in above)
        if inside or own in self._around or self._is_other(own, folder):
            what = "a job would write into the folder of another one"
            fix = "leave it alone, unless you know who made it; then write another name there"
            raise UserError(what, key=key, expected=expected, received=name, fix=fix, family="folder-in-use")
        self._names.setdefault(same_name(own), own)
        self._own.add(own)
        self._around |= above
        return folder

    def _is_other(self, name: str, folder: Path) -> bool:
        """Tell whether a folder is that of a job whose name differs, where the disk does not tell capitals apart."""
        known = self._names.get(same_name(name), name)
        return known != name and folder.exists() and (self.home / known).exists() and folder.samefile(self.home / known)


def check_folder(folder: Path) -> None:
    """Refuse the folder of a job that is there for something else.

    Args:
        folder: As `JobPlaces.place` returned it.

    Raises:
        UserError: It holds files, and none of those of a job.
    """
    if not folder.is_dir() or is_run(folder) or any(os.path.lexists(folder / name) for name in _OF_JOBS):
        return
    if any(folder.iterdir()):
        what, fix = "a job would write into a folder that is there for something else", "move that folder, or the sweep"
        raise UserError(what, key=str(folder), expected="no folder, or that of a job", fix=fix, family="folder-in-use")


def check_home(home: Path) -> None:
    """Refuse a sweep in the folder of the project, or around it, whose jobs would be the project's own folders.

    Raises:
        UserError: The sweep is there.
    """
    root = project_root()
    if root is not None and root.is_relative_to(home.resolve()):
        what, fix = "a sweep cannot lie in the folder of the project", "move its files into a folder of outputs/sweeps/"
        raise UserError(what, key=str(home), fix=fix, family="file")
