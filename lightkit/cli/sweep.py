"""`lightkit train -m`: one process per job, one after the other, and the truth about them at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from lightkit.cli.folders import chosen_run_folder, hydra_folder, new_run_folder, project, slug
from lightkit.cli.runs import describe
from lightkit.cli.terminal import complain, number, say, table

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lightkit.config import Composed

STOPPED = (130, 143, -2, -15)


@dataclass(frozen=True)
class Sweep:
    """A sweep whose jobs were checked and whose folder exists."""

    folder: Path
    jobs: dict[Path, Sequence[str]]
    options: tuple[str, ...]


def sweep(overrides: list[str], *, config_dir: str | None, config_name: str) -> int:
    """Check every job, then train one after the other.

    Args:
        overrides: Overrides, with commas between swept values.
        config_dir: Extra folder of options.
        config_name: Name of the primary configuration.

    Returns:
        0 when every job ended well, else the exit status of the first that did not.

    Raises:
        UserErrors: Jobs with a wrong configuration; nothing was started.
    """
    from lightkit.config import compose_jobs

    jobs = compose_jobs(overrides, config_dir=config_dir, config_name=config_name)
    if _foreign(jobs[0]):
        return _by_hydra(overrides, config_dir, config_name)
    folder = _folder(jobs[0])
    options = (*(["--config-dir", config_dir] if config_dir else []), "--config-name", config_name)
    planned = Sweep(folder, _job_folders(folder, jobs), options)
    signal.signal(signal.SIGTERM, _terminated)
    return _report(planned, _run_all(planned))


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


def _folder(job: Composed) -> Path:
    """`hydra.sweep.dir` where it was set, else a new folder."""
    named = hydra_folder(job, "sweep", "multirun/")
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
        command = [sys.executable, "-m", "lightkit", "train", *overrides, *planned.options, "--folder", str(folder)]
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
    except SystemExit:
        process.terminate()
        return process.wait() or 143


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(143)


def _report(planned: Sweep, codes: dict[Path, int]) -> int:
    rows = []
    for folder in planned.jobs:
        code = codes.get(folder)
        status = "not started" if code is None else "done" if code == 0 else f"failed ({code})"
        row = describe(folder, planned.folder)
        rows.append((folder.name, status, row["metric"], number(row["best"])))
    say("\n" + table(["job", "status", "metric", "best"], rows, right=[3]))
    say(f"\nwritten to {planned.folder}")
    failed = [code for code in codes.values() if code]
    if failed:
        complain(f"{len(failed)} of {len(planned.jobs)} jobs did not end well")
    return failed[0] % 256 if failed else 0
