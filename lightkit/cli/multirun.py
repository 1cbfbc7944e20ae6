"""`lightkit train -m`: every job is checked and stored, then an engine runs them, and the truth is told at the end."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lightkit.cli.detach import carry_out
from lightkit.cli.ranks import train_job
from lightkit.cli.replicates import is_worse, keep_best, whole_states
from lightkit.cli.sweep import SweepDisplay, report, tell_stopped
from lightkit.cli.terminal import complain, say
from lightkit.cli.together import build_together
from lightkit.common import run_files
from lightkit.common.errors import FAILED, IN_USE, UserError, UserErrors
from lightkit.common.text import counted
from lightkit.config import Composed, compose_jobs, run_hydra
from lightkit.config.loader import make_loader, split_sweep
from lightkit.config.native import compose_replicates
from lightkit.config.provenance import check_key
from lightkit.runs import placement
from lightkit.runs.catalog import find_run, project
from lightkit.runs.folder import keep_apart, refuse_links, writing
from lightkit.runs.lock import lock_holder, locked
from lightkit.runs.reading import read_run
from lightkit.sweep import plan
from lightkit.sweep.controller import Controller
from lightkit.sweep.engines.base import JobEngine
from lightkit.sweep.job import Job
from lightkit.sweep.journal import Journal, Record, read_journal
from lightkit.sweep.plan import build_engine, build_search, check_race
from lightkit.sweep.received import adopt, check_record, check_study, counting_options
from lightkit.sweep.state import look

_AT_ONCE = "vectorized"
"""The launcher that trains jobs which differ in their seed alone at once, in this process."""
_STUDY = "optuna"
"""The sweeper that lets Optuna choose the jobs."""


def multirun(options: argparse.Namespace) -> int:
    """Check every job, then run them; with `--cfg`, print them instead.

    Args:
        options: Those of `lightkit train`.

    Returns:
        0 when every job ended well, else the exit status of the first that did not, 128 + n where signal n ended it.

    Raises:
        UserErrors: Jobs with a wrong configuration; nothing was started.
    """
    where = {"config_dir": options.config_dir, "config_name": options.config_name}
    jobs = compose_jobs(options.overrides, **where) if options.source is None else _jobs_over_run(options)
    launcher, sweeper = (jobs[0].choices.get(f"hydra/{kind}") for kind in ("launcher", "sweeper"))
    is_grid = sweeper in ("basic", None)
    if len(jobs) == 1 and is_grid:
        complain("note: nothing varies, so this sweep has one job; several values of a key make several: seed=0,1,2")
    if options.cfg:
        from lightkit.cli.config import print_jobs

        return print_jobs(jobs, options)
    at_once = launcher == _AT_ONCE and is_grid
    study: dict[str, Any] = {}
    names = placement.job_names(jobs, options.overrides)
    if at_once:
        from lightkit.runner.seeds import check_seeds

        check_seeds([job.cfg for job in jobs])
        build_together(jobs[0].sweep, Path())
    elif sweeper == _STUDY and launcher in ("basic", None):
        study = _study(jobs[0], options)
    elif {sweeper, launcher} - {"basic", None}:
        folder = _folder(jobs, options)
        for name in names if jobs[0].cfg.resume.mode != "auto" else ():
            placement.check_free(folder / name)

        def run_by_hydra() -> int:  # what `train_job` returns is the objective
            run_hydra(options.overrides, train_job, **where, sweep_dir=folder, names=names)
            return 0

        return carry_out(run_by_hydra, folder, options, on_end=jobs[0].cfg.on_end)
    plan.check_alike(jobs)
    source = str(find_run(options.source, project())) if options.source is not None else None
    more = {"over": jobs[0].sweep["over"]} if jobs[0].replicate else {}
    command = plan.command_of(options.overrides, source=source, **where, **more)
    plain = [plan.plain_job(job) for job in jobs]
    check_race(jobs[0].sweep, plain, study=bool(study))
    check_key([job.cfg for job in jobs], project() / run_files.OUTPUTS / run_files.SWEEPS)
    folder = _folder(jobs, options, plan.find_unfinished(project(), command))
    planned = [] if study else list(zip(names, jobs))
    head = {"command": command, "options": jobs[0].sweep, "at_once": at_once, **study}
    try:
        work = partial(_begin, folder, planned, plain, head)
        return carry_out(work, folder, options, on_end=jobs[0].cfg.on_end)
    finally:
        placement.discard_if_empty(folder, project())


def _jobs_over_run(options: argparse.Namespace) -> list[Composed]:
    """Compose and check every job over the configuration of an earlier run.

    Raises:
        UserErrors: Jobs with a wrong configuration.
    """
    run = find_run(options.source, project())
    own = [text for text in options.overrides if not text.lstrip("+~").startswith(("hydra.", "hydra/"))]
    foreign = [text for text in options.overrides if text.lstrip("+").startswith("hydra/")]
    if foreign:
        fix = f"leave {foreign[0]} out: the plain sweep of every combination"
        raise UserError("another sweeper or launcher cannot start from a run", key="--from", received=run.name, fix=fix)
    try:
        combinations = split_sweep(make_loader(), own)
    except ValueError as error:
        raise UserError(f"this sweep can't be laid out: {error}", key="--multirun") from error
    jobs, errors = list[Composed](), dict[tuple[object, ...], UserError]()
    for combination in combinations:
        try:
            jobs += compose_replicates(partial(read_run, run, new=True), combination)
        except UserErrors as found:
            errors |= {(error.key, error.what, error.origin): error for error in found.errors}
    if errors:
        raise UserErrors(errors.values())
    return jobs


def _study(job: Composed, options: argparse.Namespace) -> dict[str, Any]:
    """Return what the journal keeps of a study that Optuna is to make."""
    from lightkit.sweep.study import describe_study

    if options.source is not None:
        what, fix = "a study cannot start from a run", "the overrides of the run on the command line"
        raise UserError(what, key="--from", received=options.source, fix=fix)
    found = describe_study(job, options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    return {"study": found, "complete": False}


def _folder(jobs: Sequence[Composed], options: argparse.Namespace, earlier: Path | None = None) -> Path:
    """Return the folder of the sweep: the one that the user has chosen, that of an earlier part, or a new one."""
    chosen = placement.hydra_folder(jobs[0], "sweep", options.overrides)
    if chosen:
        return placement.chosen_run_folder(chosen)
    return earlier or placement.new_run_folder(project(), str(jobs[0].cfg.name), kind=run_files.SWEEPS)


def go_on(folder: Path, options: Mapping[str, Any], **how: Any) -> int:
    """Go on with a sweep as its journal has it.

    Args:
        folder: Folder of the sweep.
        options: What is to be different of the section `sweep`.
        **how: As `Controller.run` takes it.

    Returns:
        As `multirun`.

    Raises:
        UserError: Another process runs it (exit code 75), or it cannot be read.
    """
    with _opened(folder) as journal:
        record = read_journal(folder)
        check_record(record)
        check_study(record)
        if not record.jobs and "study" not in record.head:
            what = "its journal plans no job, so there is nothing to go on with"
            fix = "`lightkit train -m` begins another"
            raise UserError(what, key=str(journal.path), fix=fix, family="no-such-run")
        changed, left = counting_options(record, options)
        if left:
            complain(f"this sweep comes from elsewhere, so these of its options do not count: {', '.join(left)}")
            complain("type those that you want; --trust takes all, and lets the sweep run any command as you")
        jobs = list(record.jobs.values())
        engine = _engine({**record.head, "options": changed}, jobs, folder)
        journal.head(options=changed)
        return _run(record, journal, engine, jobs, changed, **how)


def take_over(folder: Path) -> None:
    """Make a sweep from elsewhere the user's own, who knows who made it.

    Args:
        folder: Folder of the sweep.

    Raises:
        UserError: Another process runs it (exit code 75), or its jobs or options cannot be.
    """
    with _opened(folder) as journal:
        adopt(read_journal(folder), journal)


def _begin(folder: Path, jobs: Sequence[tuple[str, Composed]], plain: Sequence[Job], head: Mapping[str, Any]) -> int:
    """Store the jobs in the folder of a sweep, beside those that it has, and run them.

    Args:
        folder: Folder of the sweep.
        jobs: All of them with their names; none of a study, which makes them up as it goes on.
        plain: What it takes to run them.
        head: What the journal is to say of the whole sweep.
    """
    engine = _engine(head, plain, folder)
    with _opened(folder) as journal:
        has_some = (folder / run_files.SWEEP_JOURNAL).stat().st_size > 0
        record = read_journal(folder) if has_some else Record(folder)
        if "study" in head:
            check_record(record)
            check_study(record, begins=True)
            journal.head(**head)
            record = read_journal(folder)
            return _run(record, journal, engine, list(record.jobs.values()), head["options"])
        change = plan.compare(jobs, record)
        check_record(record, change.jobs)
        journal.head(**head)
        known = {job.name for job in change.jobs if job.name in record.known}
        record = plan.store(journal, record, change)
        if known or change.removed:
            done = sum(
                look(record.jobs[name], record, controlled=False).status == "finished"
                for name in known - record.replanned
            )
            told = f"{done} of {counted(len(change.jobs), 'job')} done, {len(change.jobs) - len(known)} new"
            say(f"goes on with {folder}: {told}")
        if change.edited:
            say(f"the configuration has changed since for {counted(len(change.edited), 'job')}; what is stored counts")
            say("for a new sweep:  hydra.sweep.dir=ANOTHER")
        return _run(record, journal, engine, [record.jobs[job.name] for job in change.jobs], head["options"])


def _run(
    record: Record, journal: Journal, engine: JobEngine, jobs: Sequence[Job], options: Mapping[str, Any], **how: Any
) -> int:
    """Run what is left of a sweep, or only end its jobs, and report on all of it."""
    display = SweepDisplay(record)
    try:
        search = build_search(options, jobs, record, partial(is_worse, options["over"]))
    except UserError:
        engine.close()
        raise
    controller = Controller(record, journal, search, engine, options=options, display=display)
    with closing(display):
        controller.run(**how)
    named = [job.name for job in jobs]
    states = [controller.states[name] for name in (*named, *(name for name in record.jobs if name not in named))]
    report(record.folder, whole_states(record, states))
    if options["keep_checkpoints"] is not None and search.ended and not controller.stopped_by:
        say(keep_best(record, whole_states(record, states), options))
    if "study" in record.head:
        from lightkit.sweep.study import show_study

        journal.head(complete=search.ended and not controller.stopped_by)
        for line in show_study(search, record.folder):
            say(line)
    ended_badly = [state for state in states if state.status in ("failed", "interrupted")]
    for status, said in (("failed", "failed"), ("interrupted", "will go on from where they were interrupted")):
        if count := sum(state.status == status for state in states):
            complain(f"{count} of {counted(len(states), 'job')} {said}")
    if ended_badly or any(state.status == "waiting" for state in states):
        say(f"go on with:  lightkit sweep resume {record.folder}")
    tell_stopped(record.folder, states)
    return controller.stopped_by or next((state.code or FAILED for state in ended_badly), 0)


def _engine(head: Mapping[str, Any], jobs: Sequence[Job], folder: Path) -> JobEngine:
    """Build what runs the jobs of a sweep, as its journal begins: `options`, and whether they train `at_once`."""
    if head.get("at_once"):
        return build_together(head["options"], folder)
    return build_engine(head["options"], jobs, folder, study="study" in head)


@contextmanager
def _opened(folder: Path) -> Iterator[Journal]:
    """Lock the folder of a sweep and open its journal.

    Raises:
        UserError: Another process runs the sweep (exit code 75), or the folder cannot be written.
    """
    with ExitStack() as stack:
        with writing(folder):
            if (holder := lock_holder(folder)) is not None and (folder / run_files.SWEEP_JOURNAL).is_file():
                fix = f"`lightkit sweep status {folder}` shows it, `lightkit sweep stop {folder}` ends it"
                what, family = f"{holder} runs this sweep", "folder-in-use"
                raise UserError(what, key=str(folder), fix=fix, exit_code=IN_USE, family=family)
            refuse_links(folder, run_files.SWEEP_OWN, run_files.SWEEP_FOLDERS)
            stack.enter_context(locked(folder))
            keep_apart(folder, run_files.SWEEP_JOURNAL)
            journal = stack.enter_context(Journal(folder))
        yield journal
