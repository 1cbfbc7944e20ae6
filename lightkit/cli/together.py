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
from lightkit.common.errors import UserError
from lightkit.common.signals import held
from lightkit.config.schema.running import SweepConfig
from lightkit.runs.catalog import has_checkpoints
from lightkit.runs.lock import locked
from lightkit.runs.reading import read_result
from lightkit.sweep.engines.together import TogetherEngine
from lightkit.sweep.job import Job
from lightkit.sweep.journal import find_job
from lightkit.sweep.run_job import job_config, leave_result
from lightkit.sweep.state import STOPPED

if TYPE_CHECKING:
    from omegaconf import DictConfig


_PAUSING = ("method", "rungs")
_OF_ONE = ("time_limit", "stall_limit", "budget")
"""Options that end single jobs, or are looked at while jobs train."""


def build_together(options: Mapping[str, Any], folder: Path) -> TogetherEngine:
    """Build the engine of `hydra/launcher=vectorized`.

    Args:
        options: The section `sweep`.
        folder: Folder of the sweep.

    Raises:
        UserError: The sweep is to be run in another way, too.
    """
    halving = options.get("halving") or {}
    set_ = {"sweep.engine": options.get("engine"), **{f"sweep.halving.{key}": halving.get(key) for key in _PAUSING}}
    set_ |= {f"sweep.{key}": options.get(key) for key in _OF_ONE}
    for key, value in set_.items():
        if value not in (None, SweepConfig().engine):
            what = "jobs that train at once do so in the process of the sweep, and each to its end"
            fix = f"leave {key} out, or hydra/launcher=vectorized"
            raise UserError(what, key=key, received=value, fix=fix, family="hydra")
    return TogetherEngine(folder, partial(_train, folder))


def _train(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Train jobs at once where that can be done, the others one after the other; return their exit statuses."""
    codes: dict[str, int] = {}
    with ExitStack() as stack:
        jobs: dict[str, _Prepared] = {}
        for name in names:
            codes[name] = guarded(partial(_prepare, stack, folder / name, jobs))
        for group in _alike(jobs):
            codes |= _train_group(folder, group, stopped=next(filter(STOPPED.__contains__, codes.values()), 0))
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


def _alike(jobs: Mapping[str, _Prepared]) -> list[list[_Prepared]]:
    """Group jobs that differ in their seed alone."""
    if not jobs:
        return []
    with held():
        from lightkit.runner.seeds import alike_jobs
    return [[jobs[name] for name in names] for names in alike_jobs({name: job.cfg for name, job in jobs.items()})]


def _train_group(folder: Path, group: Sequence[_Prepared], *, stopped: int) -> dict[str, int]:
    """Train jobs at once, then those alone that cannot; `stopped` is the status of jobs before that a signal ended."""
    code = stopped or (guarded(partial(_train_at_once, folder, group)) if len(group) > 1 else 0)
    codes: dict[str, int] = {}
    for own in group:
        done = read_result(own.job.folder)
        if done.get("status") == "finished" and done != own.before:
            codes[own.job.name] = 0
            continue
        codes[own.job.name] = found = code or guarded(partial(_train_alone, own))
        code = code or (found if found in STOPPED else 0)
    return codes


def _train_at_once(folder: Path, group: Sequence[_Prepared]) -> int:
    from lightkit.runner.seeds import train_seeds

    with _reasons([(own.job, own.before) for own in group]):
        overrides = {own.job.name: own.job.overrides for own in group}
        train_seeds({own.job.name: own.cfg for own in group}, folder, overrides)
    return 0


def _train_alone(own: _Prepared) -> int:
    with _reasons([(own.job, own.before)]):
        folder = own.job.folder
        return start(own.cfg, folder, overrides=own.job.overrides, resume=has_checkpoints(folder))


@contextmanager
def _reasons(jobs: Sequence[tuple[Job, dict[str, Any]]]) -> Iterator[None]:
    """Leave the reason with each job that an error ends before its run can do so."""
    try:
        yield
    except Exception as error:
        for job, before in jobs:
            leave_result(job.folder, before, "failed", str(error) or type(error).__name__)
        raise
