"""`lightkit train -m`: one process per job, one after the other, and the truth about them at the end."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.runs import describe
from lightkit.cli.terminal import complain, fitting, number, say, table, width
from lightkit.common.errors import UserError, UserErrors
from lightkit.common.processes import lightkit_command
from lightkit.common.signals import numbers
from lightkit.runs.catalog import chosen_run_folder, find_run, hydra_folder, new_run_folder, project, slug
from lightkit.runs.reading import read_run

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lightkit.config import Composed

STOPPED = {sign * number + (128 if sign > 0 else 0) for number in numbers() for sign in (1, -1)}
"""Exit statuses of a job that was told to end, as then are the jobs after it."""
TABLE, RESULTS = "results.txt", "results.csv"


@dataclass(frozen=True)
class Sweep:
    """A sweep whose jobs were checked and whose folder exists."""

    folder: Path
    jobs: dict[Path, Sequence[str]]
    options: tuple[str, ...]


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
    if _foreign(jobs[0]):
        return _by_hydra(options.overrides, options.config_dir, options.config_name)
    folder = _folder(jobs[0], options)
    planned = Sweep(folder, _job_folders(folder, jobs), _passed_on(options))
    return _report(planned, _run_all(planned))


def _jobs(options: argparse.Namespace) -> list[Composed]:
    if options.source is None:
        from lightkit.config import compose_jobs

        return compose_jobs(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    run, own = find_run(options.source, project()), [text for text in options.overrides if not _is_hydras(text)]
    foreign = [text for text in options.overrides if text.lstrip("+").startswith("hydra/")]
    if foreign:
        fix = f"leave {foreign[0]} out: the plain sweep of every combination"
        raise UserError("another sweeper or launcher cannot start from a run", key="--from", received=run.name, fix=fix)
    return _jobs_from(run, own)


def _jobs_from(run: Path, overrides: list[str]) -> list[Composed]:
    """The jobs of a sweep over the configuration of an earlier run."""
    from lightkit.config.compose import make_loader
    from lightkit.config.hydra_compat import split_sweep

    try:
        combinations = split_sweep(make_loader(), overrides)
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


def _is_hydras(override: str) -> bool:
    return override.lstrip("+~").startswith(("hydra.", "hydra/"))


def _passed_on(options: argparse.Namespace) -> tuple[str, ...]:
    """The options that every job is started with."""
    if options.source is not None:
        return ("--from", str(find_run(options.source, project())))
    return (*(["--config-dir", options.config_dir] if options.config_dir else []), "--config-name", options.config_name)


def _print(jobs: list[Composed], options: argparse.Namespace) -> int:
    from lightkit.cli.config import as_yaml

    if options.cfg != "job":
        raise UserError("only the jobs of a sweep can be printed", key="--cfg", received=options.cfg, fix="--cfg job")
    for position, job in enumerate(jobs):
        said = " ".join(job.overrides) or "without overrides"
        say(("---\n" if position else "") + f"# job {position + 1} of {len(jobs)}: {said}")
        say(as_yaml(job.cfg, resolve=options.resolve, package=options.package))
    return 0


def _foreign(job: Composed) -> bool:
    """Whether another sweeper or launcher than Hydra's own plain ones was chosen."""
    picked = {job.choices.get("hydra/sweeper"), job.choices.get("hydra/launcher")}
    return bool(picked - {"basic", None})


def _by_hydra(overrides: list[str], config_dir: str | None, config_name: str) -> int:
    """Let the chosen sweeper and launcher run the jobs; what they return is the objective."""
    from lightkit.config import run_hydra

    run_hydra(overrides, _train_here, config_dir=config_dir, config_name=config_name)
    return 0


def _train_here(cfg: DictConfig) -> float | None:
    from lightkit.config.hydra_compat import HydraConfig
    from lightkit.runner import Runner

    job = HydraConfig.get()
    result = Runner(cfg, Path(job.runtime.output_dir), overrides=list(job.overrides.task)).run()
    value = result["objective"]["value"]
    return None if value is None else float(value)


def _folder(job: Composed, options: argparse.Namespace) -> Path:
    """`hydra.sweep.dir` where it was set, else a new folder."""
    named = hydra_folder(job, "sweep", options.overrides)
    return chosen_run_folder(named) if named else new_run_folder(project(), str(job.cfg.name), kind="sweeps")


def _job_folders(folder: Path, jobs: list[Composed]) -> dict[Path, Sequence[str]]:
    """A folder for every job, named by the overrides that tell it from the others."""
    varied = {text for job in jobs for text in job.overrides if any(text not in other.overrides for other in jobs)}
    found: dict[Path, Sequence[str]] = {}
    for job in jobs:
        base = slug(",".join(text for text in job.overrides if text in varied))
        names = (base, *(f"{base}-{count}" for count in range(2, len(jobs) + 2)))
        found[next(folder / name for name in names if folder / name not in found)] = job.overrides
    return found


def _run_all(planned: Sweep) -> dict[Path, int]:
    codes: dict[Path, int] = {}
    for folder, overrides in planned.jobs.items():
        say(f"[{len(codes) + 1}/{len(planned.jobs)}] {folder.name}")
        sys.stdout.flush()
        command = lightkit_command("train", *overrides, *planned.options, "--folder", str(folder))
        codes[folder] = _wait(subprocess.Popen(command))
        if codes[folder] in STOPPED:
            break
    return codes


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Exit status of a job; when we are told to stop, so is the job, which then saves a checkpoint."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        # The terminal sent Ctrl-C to the job as well.
        return process.wait() or 130
    except SystemExit as stop:
        process.terminate()
        return process.wait() or int(str(stop.code))


def _report(planned: Sweep, codes: dict[Path, int]) -> int:
    rows = [_row(folder, overrides, planned, codes.get(folder)) for folder, overrides in planned.jobs.items()]
    cells = [[row["job"], row["status"], row["metric"], number(row["best"])] for row in rows]
    titles = ["job", "status", "metric", "best"]
    _write(planned.folder, rows, table(titles, cells, right=[3]))
    say("\n" + table(titles, fitting(titles, cells, columns=[0], width=width()), right=[3]))
    say(f"\nwritten to {planned.folder}, this table to {TABLE} and {RESULTS}")
    failed = [code for code in codes.values() if code]
    if failed:
        complain(f"{len(failed)} of {len(planned.jobs)} jobs did not end well")
        say(f"go on with:  the same command and  resume=auto hydra.sweep.dir={planned.folder}")
    return (128 - failed[0] if failed[0] < 0 else failed[0]) if failed else 0


def _row(folder: Path, overrides: Sequence[str], planned: Sweep, code: int | None) -> dict[str, Any]:
    """A job in the table of results, with a column for everything that was swept."""
    facts = describe(folder, planned.folder)
    fixed = set.intersection(*(set(texts) for texts in planned.jobs.values()))
    swept = dict(text.partition("=")[::2] for text in overrides if text not in fixed)
    known = {name: facts[name] for name in ("metric", "best", "epochs")}
    return {"job": folder.name, **swept, "status": _status(code), **known, "exit_status": code}


def _status(code: int | None) -> str:
    if code in STOPPED:
        return "interrupted"
    return "not started" if code is None else "done" if code == 0 else f"failed ({code})"


def _write(folder: Path, rows: list[dict[str, Any]], text: str) -> None:
    """Keep the table: to read, and for a program."""
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        for name in (TABLE, RESULTS):
            (folder / name).unlink(missing_ok=True)  # a link of that name is not written through
        (folder / TABLE).write_text(text + "\n", encoding="utf-8")
        with (folder / RESULTS).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(names))
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        complain(f"cannot write the table: {error.strerror}")
