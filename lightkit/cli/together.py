"""`hydra/launcher=vectorized`: the jobs of a sweep that differ in their seed alone train at once, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightkit.cli.entry import guarded
from lightkit.cli.ranks import start
from lightkit.common import run_files
from lightkit.common.collecting import importing
from lightkit.common.errors import UserError
from lightkit.config.schema.sweeping import SweepConfig
from lightkit.runs.catalog import has_checkpoints
from lightkit.runs.lock import locked
from lightkit.runs.on_end import STOPPED
from lightkit.runs.reading import read_result
from lightkit.sweep.engines.base import TogetherEngine
from lightkit.sweep.job import Job
from lightkit.sweep.journal import find_job
from lightkit.sweep.run_job import job_config, leave_result

if TYPE_CHECKING:
    from omegaconf import DictConfig

_NOT_AT_ONCE = ("engine", "halving.method", "halving.rungs", "time_limit", "stall_limit", "budget")
"""Options of a sweep that end single jobs or look at them while they train, or say that they train elsewhere."""


def build_together(options: Mapping[str, Any], folder: Path) -> TogetherEngine:
    """Build the engine of `hydra/launcher=vectorized`.

    Args:
        options: The section `sweep`.
        folder: Folder of the sweep.

    Raises:
        UserError: The sweep is to be run in another way, too.
    """
    for name in _NOT_AT_ONCE:
        section, _, key = name.rpartition(".")
        value = ((options.get(section) or {}) if section else options).get(key)
        if value not in (None, SweepConfig().engine):
            what = "jobs that train at once do so in the process of the sweep, and each to its end"
            fix = f"leave sweep.{name} out, or hydra/launcher=vectorized"
            raise UserError(what, key=f"sweep.{name}", received=value, fix=fix, family="hydra")
    return TogetherEngine(folder, partial(_train, folder))


def _train(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Train jobs at once where that can be done, the others one after the other; return their exit statuses."""
    codes: dict[str, int] = {}
    with ExitStack() as stack:
        jobs: dict[str, _Prepared] = {}
        for name in names:
            codes[name] = guarded(partial(_prepare, stack, folder / name, jobs))
        if not jobs:
            return codes
        with importing():
            from lightkit.runner.seeds import alike_jobs
        for alike in alike_jobs({name: job.cfg for name, job in jobs.items()}):
            stopped = next(filter(STOPPED.__contains__, codes.values()), 0)
            codes |= _train_group(folder, [jobs[name] for name in alike], stopped=stopped)
    return codes


class _Prepared(NamedTuple):
    """A job whose folder is locked."""

    job: Job
    cfg: DictConfig
    before: dict[str, Any]
    """The result of an earlier part."""


def _prepare(stack: ExitStack, folder: Path, jobs: dict[str, _Prepared]) -> int:
    """Lock the folder of a job, and add the job to those that can begin."""
    job, known = find_job(folder)
    stack.enter_context(locked(folder, run_files.JOB_LOCK))
    if known and not jobs:  # what somebody else wrote sets no variables here
        os.environ.update(job.environment)
    before = read_result(folder)
    with _reasons([(job, before)]):
        jobs[job.name] = _Prepared(job, job_config(folder, job.config, known=known), before)
    return 0


def _train_group(folder: Path, group: Sequence[_Prepared], *, stopped: int) -> dict[str, int]:
    """Train jobs at once, then those alone that cannot; `stopped` is the status of jobs before that a signal ended."""
    code = stopped or (guarded(partial(_train_at_once, folder, group)) if len(group) > 1 else 0)
    codes: dict[str, int] = {}
    for own in group:
        done = read_result(own.job.folder)
        if done.get("status") == "finished" and done != own.before:
            codes[own.job.name] = 0
            continue
        codes[own.job.name] = ended = code or guarded(partial(_train_at_once, folder, [own]))
        code = code or (ended if ended in STOPPED else 0)
    return codes


def _train_at_once(folder: Path, group: Sequence[_Prepared]) -> int:
    """Train jobs in one process, or one as any other run."""
    from lightkit.runner.seeds import train_seeds

    with _reasons([(own.job, own.before) for own in group]):
        if len(group) == 1:
            job = group[0].job
            return start(group[0].cfg, job.folder, overrides=job.overrides, resume=has_checkpoints(job.folder))
        overrides = {own.job.name: own.job.overrides for own in group}
        train_seeds({own.job.name: own.cfg for own in group}, folder, overrides)
    return 0


@contextmanager
def _reasons(jobs: Sequence[tuple[Job, dict[str, Any]]]) -> Iterator[None]:
    """Leave the reason with each job that an error ends before its run can do so."""
    try:
        yield
    except Exception as error:
        for job, before in jobs:
            leave_result(job.folder, before, "failed", str(error) or type(error).__name__)
        raise
