"""The process of a job: it trains what the sweep has planned, and leaves a reason whatever it dies of."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightkit.common import run_files
from lightkit.common.errors import IN_USE, UserError, of_signal
from lightkit.common.reading import yaml_or_nothing
from lightkit.common.text import without_secrets
from lightkit.sweep.journal import find_job
from lightkit.sweep.warm import TIED_TO

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LOG = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
Train = Callable[..., int]
"""Trains a configuration in a folder: `train(cfg, folder, overrides=…, resume=…)` returns an exit status."""


def run_job(folder: Path, *, stop_at: str | None, train: Train) -> int:
    """Train the job that a sweep has planned for a folder, from its last checkpoint where it has one.

    Args:
        folder: Folder of the job.
        stop_at: Where it pauses; None trains to its end.
        train: What trains it.

    Returns:
        The exit status.

    Raises:
        UserError: Another process runs in the folder (exit code 75), or what training raises.
    """
    tie_to_sweep()
    from lightkit.runs.lock import locked
    from lightkit.runs.reading import read_result

    folder = folder.absolute()
    job, known = find_job(folder)
    if known:  # what somebody else wrote sets no variables here
        os.environ.update(job.environment)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, run_files.JOB_LOCK):
        before = read_result(folder)
        try:
            code = _train(folder, job.config, job.overrides, known=known, stop_at=stop_at, train=train)
        except BaseException as error:
            if not (isinstance(error, UserError) and error.exit_code == IN_USE):
                stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
                leave_result(
                    folder,
                    before,
                    "interrupted" if stopped else "failed",
                    without_secrets(str(error)) or type(error).__name__,
                )
            raise
        if code:
            leave_result(folder, before, "failed", f"a process of the run ended with status {code}")
        return code


def _train(
    folder: Path, config: str, overrides: Sequence[str], *, known: bool, stop_at: str | None, train: Train
) -> int:
    from lightkit.runs.catalog import has_checkpoints, has_members

    cfg = job_config(folder, config, known=known, stop_at=stop_at)
    return train(cfg, folder, overrides=list(overrides), resume=has_checkpoints(folder) or has_members(folder))


def job_config(folder: Path, config: str, *, known: bool, stop_at: str | None = None) -> DictConfig:
    """Return the configuration of a job as it is to be trained.

    Args:
        folder: Folder of the job.
        config: What the sweep has stored.
        known: Whether this user has stored it; else what is in it is judged as that of somebody else.
        stop_at: Where the job pauses; None runs to its end.

    Raises:
        UserError: It comes from elsewhere, and is wrong or runs code that is not trusted.
    """
    from omegaconf import OmegaConf

    from lightkit.config import check, with_values
    from lightkit.config.policy import Trust, without_user_only
    from lightkit.config.project import make_importable, project_root
    from lightkit.config.provenance import refuse_foreign_targets

    if not yaml_or_nothing(config):
        what, fix = "the configuration that is planned for this job cannot be read", "`lightkit train -m` plans it anew"
        raise UserError(what, key=str(folder), fix=fix, family="unreadable-configuration")
    make_importable(project_root())
    cfg: DictConfig | Any = OmegaConf.create(config if known else without_user_only(config))
    if not known:
        refuse_foreign_targets(cfg, folder)
        check(cfg, trust=Trust.of_run(folder))
    paused = int(stop_at) if stop_at is not None and stop_at.isdecimal() else stop_at
    return with_values(cast("DictConfig", cfg), {} if paused is None else {"trainer.stop_at": paused})


def tie_to_sweep() -> None:
    """Save and end when the process of the sweep on this machine is gone, however it ended; on Linux only.

    It is told by the signal of a closed terminal, which never ends a run that is saving already.
    """
    owner = os.environ.pop(TIED_TO, "")
    if not owner.isdecimal() or not sys.platform.startswith("linux"):
        return
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup; no terminal reaches this session
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP))
    if os.getppid() != int(owner):  # it ended in between
        raise SystemExit(of_signal(signal.SIGHUP))


def leave_result(folder: Path, before: dict[str, Any], status: str, reason: str) -> None:
    """Leave a result and a line in the log, where the run has not come so far as to do so itself."""
    from lightkit.loggers.files import write_json
    from lightkit.loggers.runlog import run_log
    from lightkit.runs.reading import read_result

    if read_result(folder) != before:
        return
    with suppress(OSError):  # a full disk
        write_json(folder / run_files.RESULT, {**before, "status": status, "reason": reason})
        with run_log(folder / run_files.LOG):
            _LOG.error("%s: %s", status, reason)
