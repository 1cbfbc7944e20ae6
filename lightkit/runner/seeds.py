"""Jobs of a sweep that differ in their seed alone, trained at once into folders of their own."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightkit.assembly import build_shared
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.names import folder_below
from lightkit.common.reading import parse_json, parse_mapping, read_file
from lightkit.config import public
from lightkit.ensemble.methods.base import NO_ENSEMBLE, MemberResult, RunMember
from lightkit.runner.ensemble.engines import train_at_once
from lightkit.runner.session import memory_released, session
from lightkit.runs.folder import RunFolder
from lightkit.runs.reading import read_config, read_result

_FREE = ("seed", "name", "resume", "on_end")
"""Keys in which jobs that train at once may differ: their seed, and what is no part of what is trained."""


class JobFolders(RunFolder):
    """The folder of a sweep whose jobs train in one process: each job is a run of its own in it.

    Args:
        place: Where what all jobs have in common is written while they train, as the session has entered it.
        sweep: Folder of the sweep.
        overrides: What was typed for each job, by name.
    """

    def __init__(self, place: RunFolder, sweep: Path, overrides: Mapping[str, Sequence[str]]) -> None:
        super().__init__(place.path)
        self.is_begun, self._sweep, self._overrides = place.is_begun, sweep, overrides

    @property
    def whole(self) -> Path:
        """Return the folder of the sweep."""
        return self._sweep

    def member(self, name: str) -> RunFolder:
        """Return the folder of a job.

        Raises:
            UserError: The name is none of a folder below that of the sweep.
        """
        return RunFolder(_place(self._sweep, name))

    def typed_for(self, name: str, typed: Sequence[str]) -> Sequence[str]:
        """Return what was typed for a job; of one that the sweep no longer names, what its folder says."""
        return self._overrides.get(name) or self.member(name).typed()


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
    cfg, plain = jobs[0], jobs[0].ensemble.get("_target_") in (None, NO_ENSEMBLE)
    at_once = "leave hydra/launcher=vectorized out: the members of each ensemble train at once anyway"
    for key, fits, what, usual in (
        ("resume.file", cfg.resume.file is None, "jobs that train at once begin anew", "null"),
        ("device.nproc", cfg.device.nproc <= 1, "jobs that train at once have one process", "1"),
        ("trainer.stop_at", cfg.trainer.stop_at is None, "jobs that train at once do not pause", "null"),
        ("ensemble", plain, "jobs that train at once are plain runs", None),
    ):
        if not fits:
            fix = at_once if usual is None else f"{key}={usual}, or no hydra/launcher=vectorized"
            received = None if usual is None else OmegaConf.select(cfg, key)
            raise UserError(what, key=key, received=received, fix=fix, family="hydra")


def alike_jobs(jobs: Mapping[str, DictConfig]) -> list[list[str]]:
    """Group jobs by name that differ in their seed alone: those of a sweep do not where a file has changed since."""
    groups: dict[str, list[str]] = {}
    for name, cfg in jobs.items():
        groups.setdefault(_key(cfg), []).append(name)
    return [*groups.values()]


def train_seeds(jobs: Mapping[str, DictConfig], folder: Path, overrides: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Train jobs at once, each with its own seed, and leave what they leave when each trains by itself.

    Jobs that were training at once when they were interrupted go on together, from the state that all of them share,
    also those of them that the sweep no longer names: with fewer of them the last bits would differ.

    Args:
        jobs: The configuration of each job by the name of its folder; they differ in their seed alone.
        folder: Folder of the sweep.
        overrides: What was typed for each.

    Returns:
        The content of the `result.json` of each job that was trained, by name. The others cannot train at once, or
        have begun alone.

    Raises:
        UserError: A job is wrong, or training cannot go on.
        Interrupted: A signal asked the run to end.
    """
    first = next(iter(jobs.values()))
    work = folder / run_files.SWEEP_TOGETHER / _key(first)
    seeds = _begun(work, folder) | {name: int(cfg.seed) for name, cfg in jobs.items()}
    members = [RunMember(name, {"seed": seed}) for name, seed in seeds.items()]
    ended = [MemberResult(m, folder / m.name, read_result(folder / m.name)) for m in members if m.name not in jobs]
    finished = {done.member.name: done for done in ended if done.result.get("status") == "finished"}
    resumes = (work / run_files.TOGETHER).is_dir()
    with memory_released(), session(first, work, overrides=next(iter(overrides.values())), resume=resumes) as run:
        run = replace(run, place=JobFolders(run.place, folder, overrides))
        shared = build_shared(run.cfg, work, ranks=run.ranks, report=run.tell)
        run.stack.callback(shared.data.close)
        left = lambda run, member, shared: MemberResult(member, folder / member.name, {})  # noqa: E731
        trained = train_at_once(run, members, shared, left, finished=finished, engine="vectorized")
        run.members.close()
    shutil.rmtree(work, ignore_errors=True)
    with suppress(OSError):  # that of other jobs may be in it
        work.parent.rmdir()
    return {done.member.name: done.result for done in trained if done.result and done.member.name in jobs}


def _begun(work: Path, folder: Path) -> dict[str, int]:
    """Return the seeds of the jobs that train at once already, by name, in their order.

    The state of those of which one is not known any more is of no use: they begin again.
    """
    seeds: dict[str, int] = {}
    for file in sorted((work / run_files.TOGETHER).glob(f"*/{run_files.TOGETHER_MEMBERS}")):
        try:
            names = map(str, parse_json(read_file(file)))
            seeds |= {name: int(parse_mapping(read_config(_place(folder, name)))["seed"]) for name in names}
        except (OSError, ValueError, KeyError, TypeError):
            shutil.rmtree(file.parent, ignore_errors=True)
    return seeds


def _place(sweep: Path, name: str) -> Path:
    """Return the folder of a job whose name stands in a file; see `folder_below`."""
    facts: dict[str, Any] = {"key": str(sweep), "expected": "the name of a job"}
    return folder_below(sweep, name, taken=run_files.SWEEP_OWN, nested=True, **facts)


def _without_seed(cfg: DictConfig) -> dict[str, Any]:
    return {key: value for key, value in public(cfg).items() if key not in _FREE}


def _key(cfg: DictConfig) -> str:
    """Return a short name for what jobs have in common that train at once."""
    return hashlib.sha256(repr(_without_seed(cfg)).encode()).hexdigest()[:12]
