"""What a stored sweep may do that somebody else may have made: its jobs run in their folders, with harmless options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import Problems, UserError, UserErrors
from lightkit.config.check import check_sweep
from lightkit.config.provenance import is_ours
from lightkit.runs.reading import read_config
from lightkit.sweep.job import Job, check_folder, check_home
from lightkit.sweep.journal import Journal, Record

_OF_LIMITS = ("slots", "gpus_per_job", "retries", "on_error", "time_limit", "stall_limit", "budget", "warm")
HARMLESS = (*_OF_LIMITS, "over", "race", "halving")
"""Options that count wherever a sweep comes from: how many jobs run, which, and for how long. Others reach a shell or a
cluster."""
_SIGNED = ("command", "options", "at_once", "study", "complete")
"""What the head of a journal says of the whole sweep."""


def counting_options(record: Record, typed: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the section `sweep` that counts for a stored sweep, and the keys of the stored one that do not.

    Args:
        record: What its journal says.
        typed: What the user has typed of the section, checked.

    Raises:
        UserErrors: Options that cannot be.
    """
    found, left = record.head.get("options"), list[str]()
    stored: dict[str, Any] = found if isinstance(found, dict) else {}
    if not record.is_ours("options"):
        usual = check_sweep({})
        left = [
            f"sweep.{name}"
            for name, value in stored.items()
            if name not in (*HARMLESS, *typed) and value != usual.get(name)
        ]
        stored = {name: value for name, value in stored.items() if name in HARMLESS}
    return check_sweep({**stored, **typed}), left


def check_record(record: Record, jobs: Iterable[Job] = ()) -> None:
    """Refuse a sweep whose jobs would write elsewhere than into folders of their own below that of the sweep.

    Args:
        record: What its journal says.
        jobs: Those that are to be planned beside them.

    Raises:
        UserErrors: Everything that is wrong, in one report.
    """
    errors = Problems(record.refused)
    errors += [_not_begun(job) for job in record.jobs.values() if not record.has_planned(job.name) and _is_other(job)]
    known = [*record.jobs.values(), *jobs]
    for check, folders in ((check_home, [record.folder]), (check_folder, dict.fromkeys(job.folder for job in known))):
        for folder in folders:
            with errors.noted():
                check(folder)
    if errors:
        raise UserErrors(errors)


def check_study(record: Record, *, begins: bool = False) -> None:
    """Refuse a study from elsewhere, as it composes jobs that would count as this user's.

    Args:
        record: What the journal of its sweep says.
        begins: Whether a study is to begin here, or to go on.

    Raises:
        UserError: The journal, or Optuna's file beside it, was not begun by this project.
    """
    is_there = "study" in record.head or (begins and (record.folder / run_files.SWEEP_STUDY).exists())
    if is_there and not record.is_ours("study"):
        raise UserError(
            "this study comes from elsewhere: the jobs that it chooses next could run any command",
            key=str(record.folder),
            expected="a study that this project has begun",
            fix=f"lightkit sweep resume {record.folder} --trust, if you know who made it; else another folder",
            family="run-from-elsewhere",
        )


def adopt(record: Record, journal: Journal) -> None:
    """Make a sweep that somebody else has made this user's own, with all that its jobs may do.

    Args:
        record: What its journal says.
        journal: Takes what is signed.

    Raises:
        UserErrors: Its jobs or its options cannot be.
    """
    check_record(record)
    facts = {name: record.head[name] for name in _SIGNED if name in record.head}
    if "options" in facts:
        facts["options"] = check_sweep(facts["options"])
    journal.plan([job for job in record.jobs.values() if not record.has_planned(job.name)])
    if not all(map(record.is_ours, facts)):
        journal.head(**facts)


def _is_other(job: Job) -> bool:
    """Tell whether the folder of a job holds a run of this user's that no sweep began."""
    config = read_config(job.folder)
    return bool(config) and is_ours(job.folder, config) and not (job.folder / run_files.JOB_LOCK).exists()


def _not_begun(job: Job) -> UserError:
    what = "a job of a sweep from elsewhere would go on with a run of yours that no sweep began"
    fix = f"move {run_files.SWEEP_JOURNAL} into a folder of its own, if you know who made it"
    return UserError(what, key=str(job.folder), received=job.name, fix=fix, family="folder-in-use")
