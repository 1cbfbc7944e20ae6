"""`lightkit train -m`: one process per job, one after the other, and the truth about them at the end."""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.ranks import train_job
from lightkit.cli.terminal import complain, fitting, number, say, table, width
from lightkit.common import run_files
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.exit_codes import INTERRUPTED, of_process, of_signal
from lightkit.common.processes import lightkit_command
from lightkit.common.signals import numbers
from lightkit.runs.catalog import find_run, project, summarize
from lightkit.runs.placement import check_free, chosen_run_folder, hydra_folder, job_names, new_run_folder
from lightkit.runs.reading import read_run

if TYPE_CHECKING:
    from lightkit.config import Composed

_AT_ONCE = "vectorized"
"""The launcher that trains jobs which differ in their seed alone at once, in this process."""
_STOPPED = {of_signal(number) for number in numbers()}
"""Exit statuses of a job that was told to end, as then are the jobs after it."""


@dataclass(frozen=True)
class Sweep:
    """A sweep whose jobs were checked and whose folder exists."""

    folder: Path
    jobs: dict[Path, Sequence[str]]
    """The folder of each job, and its overrides."""
    options: tuple[str, ...]
    """What every job is started with besides."""


def sweep(options: argparse.Namespace) -> int:
    """Check every job, then train one after the other; with `--cfg`, print them instead.

    Args:
        options: Those of `lightkit train`.

    Returns:
        0 when every job ended well, else the exit status of the first that did not, 128 + n where signal n ended it.

    Raises:
        UserErrors: Jobs with a wrong configuration; nothing was started.
    """
    jobs = _jobs(options)
    if options.cfg:
        return _print(jobs, options)
    launcher, sweeper = (jobs[0].choices.get(f"hydra/{kind}") for kind in ("launcher", "sweeper"))
    at_once = launcher == _AT_ONCE and sweeper in ("basic", None)
    names = job_names(jobs, options.overrides)
    if at_once:
        from lightkit.runner.seeds import check_seeds

        check_seeds([job.cfg for job in jobs])
    elif {sweeper, launcher} - {"basic", None}:
        from lightkit.config import run_hydra

        folder = _folder(jobs, options)
        for name in names if jobs[0].cfg.resume.mode != "auto" else ():
            check_free(folder / name)
        # The chosen sweeper and launcher run the jobs; what `train_job` returns is the objective.
        where = {"config_dir": options.config_dir, "config_name": options.config_name}
        run_hydra(options.overrides, train_job, **where, sweep_dir=folder, names=names)
        return 0
    folder = _folder(jobs, options)
    passed_on = ["--config-dir", options.config_dir] if options.config_dir else []
    passed_on += ["--config-name", options.config_name]
    if options.source is not None:
        passed_on = ["--from", str(find_run(options.source, project()))]
    folders: dict[Path, Sequence[str]] = {folder / name: job.overrides for name, job in zip(names, jobs)}
    planned = Sweep(folder, folders, tuple(passed_on))
    return _report(planned, _run_at_once(planned, jobs) if at_once else _run_all(planned))


def _folder(jobs: Sequence[Composed], options: argparse.Namespace) -> Path:
    """Make the folder of the sweep, or take the one that the user has chosen."""
    chosen = hydra_folder(jobs[0], "sweep", options.overrides)
    return (
        chosen_run_folder(chosen) if chosen else new_run_folder(project(), str(jobs[0].cfg.name), kind=run_files.SWEEPS)
    )


def _jobs(options: argparse.Namespace) -> list[Composed]:
    """Compose and check every job, from the shipped options or over the configuration of an earlier run.

    Raises:
        UserErrors: Jobs with a wrong configuration.
    """
    if options.source is None:
        from lightkit.config import compose_jobs

        return compose_jobs(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    run = find_run(options.source, project())
    own = [text for text in options.overrides if not text.lstrip("+~").startswith(("hydra.", "hydra/"))]
    foreign = [text for text in options.overrides if text.lstrip("+").startswith("hydra/")]
    if foreign:
        fix = f"leave {foreign[0]} out: the plain sweep of every combination"
        raise UserError("another sweeper or launcher cannot start from a run", key="--from", received=run.name, fix=fix)
    from lightkit.config.compose import make_loader
    from lightkit.config.hydra_compat import split_sweep

    try:
        combinations = split_sweep(make_loader(), own)
    except ValueError as error:
        raise UserError(f"this sweep can't be laid out: {error}", key="--multirun") from error
    jobs: list[Composed] = []
    errors: dict[tuple[object, ...], UserError] = {}
    for combination in combinations:
        try:
            jobs.append(read_run(run, combination, new=True))
        except UserErrors as found:
            errors |= {(error.key, error.what, error.origin): error for error in found.errors}
    if errors:
        raise UserErrors(errors.values())
    return jobs


def _print(jobs: list[Composed], options: argparse.Namespace) -> int:
    """Print the configuration of every job."""
    from lightkit.cli.config import as_yaml

    if options.cfg != "job":
        raise UserError("only the jobs of a sweep can be printed", key="--cfg", received=options.cfg, fix="--cfg job")
    for position, job in enumerate(jobs):
        said = " ".join(job.overrides) or "without overrides"
        say(("---\n" if position else "") + f"# job {position + 1} of {len(jobs)}: {said}")
        say(as_yaml(job.cfg, resolve=options.resolve, package=options.package))
    return 0


def _run_all(planned: Sweep) -> dict[Path, int]:
    """Train one job after the other, until one was told to end; return their exit statuses."""
    codes: dict[Path, int] = {}
    for folder, overrides in planned.jobs.items():
        say(f"[{len(codes) + 1}/{len(planned.jobs)}] {folder.name}")
        sys.stdout.flush()
        job = ("--job", str(len(codes)), "--folder", str(folder))
        command = lightkit_command("train", *overrides, *planned.options, *job)
        process = subprocess.Popen(command)
        try:
            codes[folder] = process.wait()
        except KeyboardInterrupt:
            # The terminal sent Ctrl-C to the job as well, which saves a checkpoint before it ends.
            codes[folder] = process.wait() or INTERRUPTED
        except SystemExit as stop:
            process.terminate()
            codes[folder] = process.wait() or int(str(stop.code))
        if of_process(codes[folder]) in _STOPPED:
            break
    return codes


def _run_at_once(planned: Sweep, jobs: Sequence[Composed]) -> dict[Path, int]:
    """Train all jobs at once in this process, which differ in their seed alone; return their exit statuses."""
    from lightkit.config.hydra_values import job_environment
    from lightkit.runner.seeds import train_seeds

    os.environ.update(job_environment(jobs[0].hydra_cfg))
    configs = {folder.name: job.cfg for folder, job in zip(planned.jobs, jobs)}
    train_seeds(configs, planned.folder, {folder.name: typed for folder, typed in planned.jobs.items()})
    return dict.fromkeys(planned.jobs, 0)


def _report(planned: Sweep, codes: dict[Path, int]) -> int:
    """Print the table of results, keep it in the folder of the sweep, and return the exit status."""
    rows = [_row(folder, overrides, planned, codes.get(folder)) for folder, overrides in planned.jobs.items()]
    cells = [[row["job"], row["status"], row["metric"], number(row["best"])] for row in rows]
    titles = ["job", "status", "metric", "best"]
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        for name in (run_files.SWEEP_TABLE, run_files.SWEEP_RESULTS):
            (planned.folder / name).unlink(missing_ok=True)  # a link of that name is not written through
        text = table(titles, cells, right=[3])
        (planned.folder / run_files.SWEEP_TABLE).write_text(text + "\n", encoding="utf-8")
        with (planned.folder / run_files.SWEEP_RESULTS).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(names))
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        complain(f"cannot write the table: {error.strerror}")
    say("\n" + table(titles, fitting(titles, cells, columns=[0], width=width()), right=[3]))
    say(f"\nwritten to {planned.folder}, this table to {run_files.SWEEP_TABLE} and {run_files.SWEEP_RESULTS}")
    failed = [code for code in codes.values() if code]
    if failed:
        complain(f"{len(failed)} of {len(planned.jobs)} jobs did not end well")
        say(f"go on with:  the same command and  resume=auto hydra.sweep.dir={planned.folder}")
    return of_process(failed[0]) if failed else 0


def _row(folder: Path, overrides: Sequence[str], planned: Sweep, code: int | None) -> dict[str, Any]:
    """Return a job as a row of the table of results, with a column for everything that was swept."""
    run = summarize(folder)
    fixed = set.intersection(*(set(texts) for texts in planned.jobs.values()))
    swept = dict(text.partition("=")[::2] for text in overrides if text not in fixed)
    if code is None:
        status = "not started"
    elif code == 0:
        status = "done"
    else:
        status = "interrupted" if of_process(code) in _STOPPED else f"failed ({code})"
    known = {"status": status, "metric": run.metric, "best": run.best, "epochs": run.epochs}
    return {"job": folder.name, **swept, **known, "exit_status": code}
