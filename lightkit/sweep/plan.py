"""The plan of a sweep: its jobs, each fixed before the first starts, and how a repeated sweep changes it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import yaml_or_nothing
from lightkit.config import Composed, to_yaml
from lightkit.config.doors import load
from lightkit.config.hydra_settings import job_environment
from lightkit.config.native import replicates
from lightkit.config.schema.sweeping import HalvingConfig
from lightkit.runs.catalog import places_of, run_name
from lightkit.runs.lock import lock_holder
from lightkit.sweep.engines.base import JobEngine, SweepPlan
from lightkit.sweep.halving import Halving, build_halving
from lightkit.sweep.job import Grid, Job, JobSearch
from lightkit.sweep.journal import Journal, Record, read_head, read_journal
from lightkit.sweep.replicates import IsWorse, Replicated, by_whole, whole_job
from lightkit.sweep.state import look

_LOG = logging.getLogger(__name__)
_NOT_OF_THE_JOB = ("hydra.", "sweep.", "sweep=", "resume.", "resume=", "on_end=")
"""Beginnings of overrides that say where, how or whether jobs run, not what they train."""


@dataclass(frozen=True)
class PlanChange:
    """What a command changes in the plan of a sweep.

    Attributes:
        jobs: Those that it names, in its order; known ones with the configuration that is stored for them.
        added: Those of them that are to be stored.
        removed: Names of known ones that it does not name.
        edited: Names of those whose configuration would be another today, as a file has changed since.
    """

    jobs: tuple[Job, ...]
    added: tuple[Job, ...]
    removed: tuple[str, ...]
    edited: tuple[str, ...]


def check_alike(jobs: Sequence[Composed]) -> None:
    """Refuse jobs that differ in how the sweep itself is run.

    Raises:
        UserError: They do.
    """
    for job in jobs[1:]:
        for key, value in job.sweep.items():
            if value != jobs[0].sweep[key]:
                fix = f"one value of sweep.{key} for all jobs"
                raise UserError("not a key to be swept over", key=f"sweep.{key}", received=value, fix=fix)


def plain_job(composed: Composed) -> Job:
    """Return a job before it has a folder."""
    return Job("", Path(), tuple(composed.overrides), to_yaml(composed.cfg))


def compare(planned: Sequence[tuple[str, Composed]], record: Record) -> PlanChange:
    """Compare the jobs of a command with those that the sweep in a folder has already.

    A job is the same where the same was typed for it, or where its configuration is the same. Where something else was
    typed, `resume=auto` goes on with the job of that name under the new configuration, as for a single run.

    Args:
        planned: The jobs, each with the name of its folder.
        record: What the journal says.

    Raises:
        UserError: The folder holds a sweep with other settings.
    """
    by_text = {frozenset(job.overrides): job for job in record.known.values()}
    by_config = {_content(job.config): job for job in record.known.values()}
    jobs, added, edited = list[Job](), list[Job](), list[str]()
    for name, found in planned:
        own = tuple(text for text in found.overrides if not is_of_sweep(text))
        config = to_yaml(found.cfg)
        content = _content(config)
        known = by_text.get(frozenset(own)) or by_config.get(content)
        if known is None:
            if name in record.known and found.cfg.resume.mode != "auto":
                raise _other(record, name, own)
            known = Job(name, record.place(name), own, config, job_environment(found.hydra_cfg))
            added.append(known)
        elif not record.has_planned(known.name):  # what is stored now becomes ours, so it is what was typed
            known = replace(known, overrides=own, config=config, environment=job_environment(found.hydra_cfg))
            added.append(known)
        elif known.name not in record.jobs:
            added.append(known)
        elif _content(known.config) != content and not found.dated:
            edited.append(known.name)
        jobs.append(known)
    kept = {job.name for job in jobs}
    removed = tuple(name for name in record.jobs if name not in kept)
    return PlanChange(tuple(jobs), tuple(added), removed, tuple(edited))


def store(journal: Journal, record: Record, change: PlanChange) -> Record:
    """Write the changes of a plan into the journal, and return what it says then."""
    journal.plan(change.added)
    journal.remove(change.removed)
    return read_journal(record.folder)


def command_of(overrides: Sequence[str], *, source: str | None, **options: Any) -> dict[str, Any]:
    """Return what makes two commands the same sweep.

    Args:
        overrides: As typed.
        source: Folder of the run that every job starts from.
        **options: Others of the command.
    """
    return {"overrides": [text for text in overrides if not is_of_sweep(text)], "source": source, **options}


def is_of_sweep(override: str) -> bool:
    """Tell whether an override is no part of what a job trains."""
    return override.lstrip("+~").startswith(_NOT_OF_THE_JOB)


def find_unfinished(root: Path, command: Mapping[str, Any]) -> Path | None:
    """Find the newest sweep of a command below `outputs/` that is ours, that nobody runs and that has not finished."""
    for folder in all_sweeps(root)[::-1]:
        if read_head(folder).get("command") == command and lock_holder(folder) is None:
            record = read_journal(folder)
            if not record.is_ours("command"):
                what = "%s is a sweep of the same command from elsewhere; to go on with it:  lightkit sweep resume %s"
                _LOG.warning(what, folder, folder)
                continue
            jobs = [job for job in record.jobs.values() if job.name not in record.given_up]
            states = [look(job, record, controlled=False) for job in jobs]
            left = any(state.status not in ("finished", "pruned") for state in states)
            return folder if left or record.head.get("complete") is False else None
    return None


def all_sweeps(root: Path, *, everywhere: bool = False) -> list[Path]:
    """List the sweeps of a project, the newest last.

    Args:
        root: The project.
        everywhere: Also those in folders of `outputs/` that the user has chosen.
    """
    outputs = root / run_files.OUTPUTS
    places = [f"{run_files.SWEEPS}/*/*", *(("*", f"{run_files.SWEEPS}/*") if everywhere else ())]
    found = [path for place in places for path in outputs.glob(f"{place}/{run_files.SWEEP_JOURNAL}")]
    return sorted((path.parent for path in found), key=lambda folder: read_head(folder).get("time", 0.0))


def find_sweep(text: str, root: Path) -> Path:
    """Find the folder of a sweep by its path, the end of its path, or `last` for the newest.

    Raises:
        UserError: There is no such sweep.
    """
    for folder in places_of(text, root):
        if (folder / run_files.SWEEP_JOURNAL).is_file():
            return folder.resolve()
    newest_first = all_sweeps(root, everywhere=True)[::-1]
    of_this_name = [folder for folder in newest_first if text in ("last", run_name(folder))]
    for folder in [*of_this_name, *newest_first]:
        if folder in of_this_name or f"/{folder.as_posix()}".endswith((f"/{text}", f"-{text}")):
            return folder
    what = f"no sweep here: a sweep's folder holds {run_files.SWEEP_JOURNAL}"
    choices = [str(folder.relative_to(root)) for folder in newest_first[:6]]
    fix = "`lightkit train -m` makes one; `last` is the newest"
    raise UserError(what, received=text, choices=choices, fix=fix, family="no-such-run")


def _content(config: str) -> str:
    """Return a configuration without what is no part of what is trained, to compare it."""
    content = yaml_or_nothing(config)
    return repr({key: value for key, value in content.items() if key not in ("resume", "name", "on_end")})


def _other(record: Record, name: str, typed: Sequence[str]) -> UserError:
    before = [text for text in record.known[name].overrides if text not in typed]
    return UserError(
        "the folder already holds a sweep with other settings",
        key=str(record.folder),
        expected=" ".join(before) or None,
        received=" ".join(text for text in typed if text not in record.known[name].overrides),
        fix="hydra.sweep.dir=ANOTHER, or resume=auto to go on with its jobs under the new settings",
        family="folder-in-use",
    )


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
    ahead = not (study or options.get("race") or _race(options, jobs)) and options["on_error"] == "continue"
    engine, own = load(ENGINE, options["engine"], JobEngine)
    return engine.build(SweepPlan(options, jobs, folder, ahead), **own)


def build_search(
    options: Mapping[str, Any], jobs: Sequence[Job], record: Record, is_worse: IsWorse = lambda *_: False
) -> JobSearch:
    """Build what decides which jobs run, and how far.

    Args:
        options: The section `sweep`.
        jobs: Those that are planned.
        record: What the journal says.
        is_worse: Decides the race of jobs with replicates.

    Raises:
        UserError: The study that it names cannot go on.
    """
    over = options.get("over") or {}
    found = by_whole(jobs, over) if over else {}
    if "study" in record.head:
        from lightkit.sweep.study import build_study

        search: JobSearch = build_study(record.head["study"], record, over, found)
    else:
        jobs = [whole_job(parts[0], over) for parts in found.values()] or jobs
        search = _race(options, jobs) or Grid(jobs)
    return Replicated(search, found, options, is_worse) if over else search


def check_race(options: Mapping[str, Any], jobs: Sequence[Job], *, study: bool) -> None:
    """Check `sweep.halving` and `sweep.race` before anything is stored.

    Args:
        options: The section `sweep`.
        jobs: Those that are planned.
        study: Whether Optuna chooses the jobs, which has pruners of its own.

    Raises:
        UserError: The rungs make no sense for these jobs, or for a study; the race ends after the replicates.
    """
    count = len(replicates(options["over"]))
    if options["race"] and options["race"] >= count:
        what, expected = "a race ends before the replicates do", f"less than the {count} of sweep.over"
        raise UserError(what, key="sweep.race", expected=expected, received=options["race"], fix="sweep.race=null")
    if _race(options, jobs) is not None and study:
        what, fix = "a study stops jobs by a pruner", "hydra.sweeper.pruner=halving or hyperband, without sweep.halving"
        raise UserError(what, key="sweep.halving", fix=fix)


def _race(options: Mapping[str, Any], jobs: Sequence[Job]) -> Halving | None:
    return build_halving(jobs, HalvingConfig(**(options.get("halving") or {})))
