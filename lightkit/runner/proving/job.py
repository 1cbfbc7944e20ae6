"""A job for a process of its own: one run with a trace, which may be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import Learner, build_engine, build_splits, build_timetable
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.config import compose, load_run
from lightkit.data import Data
from lightkit.device.ranks import Ranks
from lightkit.ensemble.methods.base import NO_ENSEMBLE
from lightkit.metrics import SplitMetrics
from lightkit.runner.fit import Observer
from lightkit.runner.memory.batches import Batch, resolve_batch_size
from lightkit.runner.proving.trace import Moment, RunTrace, TracedTask
from lightkit.runner.run import Runner
from lightkit.trainer.timetable import Timetable

SETTINGS = "settings.json"
"""File beside the folder of the first run, with what the run was shortened by."""
_BLOCKS = 10
_SHARE, _MEMBER_EPOCHS, _MOST_MEMBERS = 3, 2, 3
"""Of an ensemble: by what the steps of a member are fewer, its epochs, and the number of members at most."""
CALLBACK = "verify_resume"


@dataclass(frozen=True)
class TracedJob:
    """What a process has to do; it comes and goes as JSON."""

    folder: str
    """Folder of the run."""
    trace: str
    """File of its trace."""
    overrides: tuple[str, ...] = ()
    """What the user typed."""
    config_dir: str | None = None
    """One more folder of options."""
    config_name: str = "config"
    """The file to start from."""
    epochs: int = 3
    """Most epochs."""
    steps: int = 75
    """Most optimizer steps; epochs and evaluations are shortened to their share of them."""
    at: int | None = None
    """Step the run will be killed at; None when that is not known yet."""
    end_at: tuple[str, int, int, str] | None = None
    """Moment at which the process is killed."""
    member: str | None = None
    """The member of an ensemble that will be trained then; None where that is to be drawn."""
    resume: bool = False
    """Go on with the run in the folder."""
    settings: tuple[str, ...] = ()
    """Overrides that shorten the run; found out by the first job."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows to keep of each split that is too long; found out by the first job."""

    def write(self, path: Path) -> Path:
        """Write the job to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> TracedJob:
        """Read a job that `write` has written."""
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)


def run_job(job: TracedJob, *, end: Callable[[], None] | None = None) -> dict[str, Any]:
    """Do a job in this process.

    Args:
        job: The job.
        end: Called at its moment instead of killing the process.

    Returns:
        The content of `result.json`.
    """
    folder, end_at = Path(job.folder), Moment(*job.end_at) if job.end_at else None
    if job.resume:
        cfg = load_run(folder).cfg
    else:
        if not job.settings:
            job = shortened(job)
            found = {"settings": job.settings, "rows": job.rows}
            (folder.parent / SETTINGS).write_text(json.dumps(found), encoding="utf-8")
        overrides = [*job.overrides, *job.settings]
        cfg = compose(overrides, config_dir=job.config_dir, config_name=job.config_name).cfg
    run = traced_runner(cfg, folder, trace=Path(job.trace), rows=job.rows, blocks=_BLOCKS, end_at=end_at, end=end)
    return run.run(resume=job.resume)


def shortened(job: TracedJob) -> TracedJob:
    """Return the job with what makes its run short and lets it save often enough; nothing of it is random.

    The lengths depend on the number of samples, so the data is loaded to find them. An epoch keeps a last smaller batch
    where it has one.
    """
    cfg = compose(job.overrides, config_dir=job.config_dir, config_name=job.config_name).cfg
    if cfg.device.nproc > 1:
        fix = "device.nproc=1: the order of samples and what is saved do not depend on it"
        raise UserError(
            "runs of one process only can be verified", key="device.nproc", received=cfg.device.nproc, fix=fix
        )
    asked = cfg.device.batch_size is not None
    cfg, _ = resolve_batch_size(cfg, Ranks())  # once: all runs have this batch
    found = Batch(cfg.data.batch_size, cfg.trainer.accumulate).settings() if asked else {}
    data = build_splits(cfg, build_engine(cfg))
    try:
        whole = cfg.ensemble._target_ != NO_ENSEMBLE
        rows = _rows(data, cfg, most=max(1, job.steps // max(1, job.epochs) // (_SHARE if whole else 1)))
        with keys_under("data"), keys_under("data"):
            table = build_timetable(cfg, data.shortened(rows, seed=cfg.seed))
    finally:
        data.close()
    total = min(table.total_steps, job.steps, job.epochs * table.steps_per_epoch)
    if whole:
        found |= _lengths_of_members(cfg, epochs := max(1, min(job.epochs, _MEMBER_EPOCHS)))
        total = min(total, epochs * table.steps_per_epoch)
    found |= _intervals(cfg, table, total)
    # About five saves in the run; one at the step of the kill and two before it.
    every = min(max(1, total // 5), table.save_steps or total)
    if job.at is not None:
        every = max((number for number in range(1, min(every, job.at // 3) + 1) if job.at % number == 0), default=1)
    settings = (
        *(f"{key}={'null' if value is None else value}" for key, value in found.items()),
        *([] if whole else [f"trainer.steps={total}"]),
        "checkpoint.enabled=true",
        f"checkpoint.every_steps={every}",
        f"logger.every_steps={min(table.log_steps, max(1, total // 10))}",
        "logger.console.style=quiet",
        "profile=false",
    )
    return replace(job, settings=settings, rows=rows)


def _rows(data: Data, cfg: DictConfig, *, most: int) -> dict[str, int]:
    """Return how many rows of each split make that many optimizer steps, or batches to evaluate, where it has more."""
    found = {}
    for name, loader in data.loaders().items():
        size = loader.batch_size * (cfg.trainer.accumulate if name == "train" else 1)
        count = (most - 1) * size + (loader.num_samples % size or size)
        if count < loader.num_samples:
            found[name] = count
    return found


def _lengths_of_members(cfg: DictConfig, epochs: int) -> dict[str, Any]:
    """Return what makes an ensemble one of few members that each train so many epochs, one after the other."""
    size, method = cfg.ensemble.get("size"), cfg.ensemble._target_.rpartition(".")[2]
    few = min(size, _MOST_MEMBERS) if size else None
    lengths = {"size": few, "folds": 2, "repeats": 1, "cycle_epochs": epochs, "engine": "sequential"}
    if cfg.ensemble.get("resample", "folds") != "folds":
        del lengths["folds"], lengths["repeats"]
    found = {f"ensemble.{key}": value for key, value in lengths.items() if cfg.ensemble.get(key) is not None}
    cycles = (few or 1) if method == "Snapshot" else 1
    return {**found, "trainer.epochs": epochs * cycles, "trainer.steps": None}


def _intervals(cfg: DictConfig, table: Timetable, total: int) -> dict[str, int]:
    """Return what has to come more often or end earlier in so short a run: validations (two at least), warm-up."""
    found: dict[str, int] = {}
    unit = 1 if cfg.trainer.validate_unit == "step" else table.steps_per_epoch
    often = max(1, total // 2 // unit)
    if cfg.trainer.validate_every > often:
        found["trainer.validate_every"] = often
    warmup = cfg.scheduler.get("warmup_steps") or (cfg.scheduler.get("warmup_epochs") or 0) * table.steps_per_epoch
    if warmup >= total:
        found |= {"scheduler.warmup_steps": total // 4}
        found |= {"scheduler.warmup_epochs": 0} if "warmup_epochs" in cfg.scheduler else {}
    return found


class TraceObserver(Observer):
    """Writes down what a run does, and may end it at a moment of that.

    Args:
        trace: What is written to.
        rows: Rows to keep of each split.
        blocks: Blocks of an epoch in which metrics count at least: one that counts nothing before the end of a short
            epoch loses nothing in a resume.
    """

    def __init__(self, trace: RunTrace, *, rows: Mapping[str, int] | None = None, blocks: int | None = None) -> None:
        self.rows, self._trace, self._blocks = dict(rows or {}), trace, blocks

    def watch(self, learner: Learner) -> Learner:
        """Add a callback and a task that tell the trace."""
        if learner.store:
            self._trace.follow(learner.store.folder)
        counted = learner.metrics["train"]
        if self._blocks is not None and isinstance(counted, SplitMetrics):
            batches = learner.timetable.steps_per_epoch * learner.timetable.accumulate
            counted.block = max(1, min(counted.block, batches // self._blocks))
        callbacks = {**learner.callbacks, CALLBACK: self._trace}
        return replace(learner, task=TracedTask(learner.task, self._trace), callbacks=callbacks)

    @contextmanager
    def saving(self, learner: Learner) -> Iterator[None]:
        """Write down the moments of a save; it is on the disk before the run goes on."""
        with self._trace.saving():
            yield
            if learner.store:
                learner.store.flush()  # otherwise the moments of the writing would fall anywhere


def traced_runner(
    cfg: DictConfig,
    folder: Path,
    *,
    trace: Path,
    rows: Mapping[str, int] | None = None,
    blocks: int | None = None,
    end_at: Moment | None = None,
    end: Callable[[], None] | None = None,
) -> Runner:
    """Return a run that writes down what it does, and may end at a moment of it.

    Args:
        cfg: See `Runner`.
        folder: See `Runner`.
        trace: File of the trace; appended to.
        rows: See `TraceObserver`.
        blocks: See `TraceObserver`.
        end_at: Moment at which the process is killed.
        end: What is called there instead.
    """
    run_trace = RunTrace(trace, Path(folder) / run_files.CHECKPOINTS, end_at=end_at, end=end)
    return Runner(cfg, folder, observer=TraceObserver(run_trace, rows=rows, blocks=blocks), on_end=False)
