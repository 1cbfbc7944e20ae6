"""Jobs of a sweep that differ in their seed alone, trained at once into folders of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import build_shared
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.config import public
from lightkit.ensemble.plan import MemberResult, RunMember
from lightkit.loggers.files import replace_file
from lightkit.runner.ensemble.together import train_together
from lightkit.runner.run import Runner
from lightkit.runner.session import memory_released, session
from lightkit.runs.folder import RunFolder

_WORK = ".together"
"""Folder beside those of the jobs with the state of all of them; it goes when they have ended."""


class JobFolders(RunFolder):
    """The folder of a sweep whose jobs train in one process: each job is a run of its own in it.

    Args:
        path: Where what all jobs have in common is written while they train.
    """

    def member(self, name: str) -> RunFolder:
        """Return the folder of a job."""
        return RunFolder(self.path.parent / name)


def check_seeds(jobs: Sequence[DictConfig]) -> None:
    """Refuse jobs that differ in more than their seed, before anything is trained.

    Args:
        jobs: Their configurations.

    Raises:
        UserError: They do.
    """
    first = _without_seed(jobs[0])
    for job in jobs[1:]:
        other = _without_seed(job)
        differ = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        if differ:
            raise UserError(
                "jobs that train at once may differ in their seed only",
                key="hydra/launcher",
                received=", ".join(f"other {key}" for key in differ),
                fix="leave hydra/launcher=vectorized out: the plain sweep trains one job after the other",
                family="hydra",
            )
    if jobs[0].trainer.stop_at is not None:
        what, fix = "jobs that train at once do not pause", "trainer.stop_at=null, or no hydra/launcher=vectorized"
        raise UserError(what, key="trainer.stop_at", received=jobs[0].trainer.stop_at, fix=fix, family="hydra")
    if jobs[0].ensemble.get("_target_") not in (None, "lightkit.ensemble.methods.NoEnsemble"):
        fix = "leave hydra/launcher=vectorized out: the members of each ensemble train at once anyway"
        raise UserError("jobs that train at once are plain runs", key="ensemble", fix=fix, family="hydra")


def train_seeds(jobs: Mapping[str, DictConfig], folder: Path, overrides: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Train jobs at once, each with its own seed, and leave what they leave when each trains by itself.

    Args:
        jobs: The configuration of each job by the name of its folder; they differ in their seed alone.
        folder: Folder of the sweep.
        overrides: What was typed for each.

    Returns:
        The content of each job's `result.json`, by name.

    Raises:
        UserError: A job is wrong, or training cannot go on.
        Interrupted: A signal asked the run to end.
    """
    first, work = next(iter(jobs.values())), folder / _WORK
    members = [RunMember(name, {"seed": int(cfg.seed)}) for name, cfg in jobs.items()]
    runner = Runner(first, work)
    with memory_released(), session(first, work, overrides=next(iter(overrides.values()))) as run:
        run = replace(run, place=JobFolders(run.place.path))
        shared = build_shared(run.cfg, work, ranks=run.ranks, report=run.tell)
        run.stack.callback(shared.data.close)
        found: list[MemberResult] = train_together(run, members, shared, runner.train_member, engine="vectorized")
        run.members.close()
    for result in found:
        lines = "".join(f"- {json.dumps(text)}\n" for text in overrides[result.member.name])
        with suppress(OSError):
            replace_file(result.folder / run_files.OVERRIDES, lines or "[]\n")
    shutil.rmtree(work, ignore_errors=True)
    return {result.member.name: result.result for result in found}


def _without_seed(cfg: DictConfig) -> dict[str, Any]:
    return {key: value for key, value in public(cfg).items() if key not in ("seed", "name")}
