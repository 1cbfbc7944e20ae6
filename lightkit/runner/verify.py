"""Proof that a run of a configuration can be killed and resumed without a trace of it in its result.

The configuration runs in three processes: uninterrupted, again up to a moment at which it kills itself, and on from
there. Everything the two runs leave behind is compared. Where something differs, the traces tell where the runs part.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lightkit.assembly import build_engine, build_splits, build_timetable
from lightkit.common.errors import FAILED, POINTER, UserError, keys_under
from lightkit.common.randomness import mix
from lightkit.config import compose, load_run
from lightkit.data import Data
from lightkit.device.ranks import Ranks
from lightkit.ensemble.methods.base import NO_ENSEMBLE
from lightkit.processes.children import Child, lightkit_command, lightkit_path
from lightkit.runner.batches import Batch, resolve_batch_size
from lightkit.runner.comparison import Comparison, compare_runs, explain, first_mismatch, read_trace
from lightkit.runner.trace import PHASES, Moment, traced_runner
from lightkit.trainer.state import Timetable

_BLOCKS = 10
_SHARE, _MEMBER_EPOCHS, _MOST_MEMBERS = 3, 2, 3
"""Of an ensemble: by what the steps of a member are fewer, its epochs, and the number of members at most."""
_LOG_LINES = 15
_REPLAYED = (
    "profile=false logger.more={} logger.console.style=quiet logger.tensorboard.enabled=false device.compile=none"
)
"""What a replay leaves out: what others see of a run, and what hides the modules."""
SIGKILL = int(getattr(signal, "SIGKILL", signal.SIGTERM))


@dataclass(frozen=True)
class TracedJob:
    """What a process has to do, one run with a trace, which may be killed; it comes and goes as JSON."""

    folder: str
    """Folder of the run."""
    trace: str
    """File of its trace."""
    overrides: Sequence[str] = ()
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
    end_at: Sequence[Any] | None = None
    """Moment at which the process is killed."""
    member: str | None = None
    """The member of an ensemble that will be trained then; None where that is to be drawn."""
    resume: bool = False
    """Go on with the run in the folder."""
    replays: str = ""
    """Folder of a run that is made again, module by module; empty where a configuration is run."""
    after: int = -1
    """Of a replay: the step after which all is written down."""
    keep: Sequence[Any] = ()
    """Of a replay: the line whose tensors are kept; see `ModuleTrace`."""
    settings: Sequence[str] = ()
    """Overrides that shorten the run; found out by the first job."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows to keep of each split that is too long; found out by the first job."""


def run_job(file: Path) -> dict[str, Any]:
    """Do a job in this process; returns the content of `result.json`.

    Args:
        file: The job; what the first job finds out for the others is added to it.
    """
    job = TracedJob(**json.loads(file.read_text(encoding="utf-8")))
    if job.replays or job.resume:
        cfg = load_run(Path(job.replays or job.folder), _REPLAYED.split() if job.replays else ()).cfg
    else:
        if not job.settings:
            job = shortened(job)
            file.write_text(json.dumps(asdict(job)), encoding="utf-8")
        overrides = [*job.overrides, *job.settings]
        cfg = compose(overrides, config_dir=job.config_dir, config_name=job.config_name).cfg
    own = {"after": job.after, "keep": job.keep} if job.replays else {"rows": job.rows, "blocks": _BLOCKS}
    end_at = Moment(*job.end_at) if job.end_at else None
    run = traced_runner(cfg, Path(job.folder), trace=Path(job.trace), end_at=end_at, **own)
    return run.run(resume=job.resume)


def shortened(job: TracedJob) -> TracedJob:
    """Return the job with what makes its run short and lets it save often enough; nothing of it is random.

    The lengths depend on the number of samples, so the data is loaded to find them. An epoch keeps a last smaller batch
    where it has one.
    """
    cfg = compose(job.overrides, config_dir=job.config_dir, config_name=job.config_name).cfg
    if cfg.device.nproc > 1:
        what, fix = "runs of one process only can be verified", "device.nproc=1: the order of samples and what is saved"
        raise UserError(what, key="device.nproc", received=cfg.device.nproc, fix=f"{fix} do not depend on it")
    asked = cfg.trainer.find_batch_size is not None
    cfg, _ = resolve_batch_size(cfg, Ranks())  # once: all runs have this batch
    epoch_steps = cfg.trainer.epoch_steps and min(cfg.trainer.epoch_steps, max(1, job.steps // max(1, job.epochs)))
    cfg = cast(DictConfig, OmegaConf.merge(cfg, {"trainer": {"epoch_steps": epoch_steps}}))
    values = Batch(cfg.data.batch_size, cfg.trainer.accumulate).settings() if asked else {}
    with closing(build_splits(cfg, build_engine(cfg))) as data:
        whole = cfg.ensemble._target_ != NO_ENSEMBLE
        rows = _rows(data, cfg, most=max(1, job.steps // max(1, job.epochs) // (_SHARE if whole else 1)))
        with keys_under("data"), keys_under("data"):
            table = build_timetable(cfg, data.shortened(rows, seed=cfg.seed))
    total = min(table.total_steps, job.steps, job.epochs * table.steps_per_epoch)
    if whole:
        values |= _lengths_of_members(cfg, epochs := max(1, min(job.epochs, _MEMBER_EPOCHS)))
        total = min(total, epochs * table.steps_per_epoch)
    values |= {"cv.engine": "sequential", "cv.folds": min(cfg.cv.folds, 3), "cv.repeats": 1} if cfg.cv.folds else {}
    values |= {"trainer.epoch_steps": epoch_steps} if epoch_steps else {}
    values |= _intervals(cfg, table, total)
    # About five saves in the run; one at the step of the kill and two before it.
    every = min(max(1, total // 5), table.save_steps or total)
    if job.at is not None:
        every = max((number for number in range(1, min(every, job.at // 3) + 1) if job.at % number == 0), default=1)
    settings = (
        *(f"{key}={'null' if value is None else value}" for key, value in values.items()),
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
    counts = {}
    for name, loader in data.loaders().items():
        size = loader.batch_size * (cfg.trainer.accumulate if name == "train" else 1)
        count = (most - 1) * size + (loader.num_samples % size or size)
        if count < loader.num_samples:
            counts[name] = count
    return counts


def _lengths_of_members(cfg: DictConfig, epochs: int) -> dict[str, Any]:
    """Return what makes an ensemble one of few members that each train so many epochs, one after the other."""
    size, method = cfg.ensemble.get("size"), cfg.ensemble._target_.rpartition(".")[2]
    few = min(size, _MOST_MEMBERS) if size else None
    lengths = {"size": few, "folds": 2, "repeats": 1, "cycle_epochs": epochs, "engine": "sequential"}
    if cfg.ensemble.get("resample", "folds") != "folds":
        del lengths["folds"], lengths["repeats"]
    known = {f"ensemble.{key}": value for key, value in lengths.items() if cfg.ensemble.get(key) is not None}
    cycles = (few or 1) if method == "Snapshot" else 1
    return {**known, "trainer.epochs": epochs * cycles, "trainer.steps": None}


def _intervals(cfg: DictConfig, table: Timetable, total: int) -> dict[str, int]:
    """Return what has to come more often or end earlier in so short a run: validations (two at least), warm-up."""
    values: dict[str, int] = {}
    unit = 1 if cfg.trainer.validate_unit == "step" else table.steps_per_epoch
    often = max(1, total // 2 // unit)
    if cfg.trainer.validate_every > often:
        values["trainer.validate_every"] = often
    warmup = cfg.scheduler.get("warmup_steps") or (cfg.scheduler.get("warmup_epochs") or 0) * table.steps_per_epoch
    if warmup >= total:
        values |= {"scheduler.warmup_steps": total // 4}
        values |= {"scheduler.warmup_epochs": 0} if "warmup_epochs" in cfg.scheduler else {}
    return values


@dataclass(frozen=True)
class VerifyResult:
    """What came of killing and resuming a run."""

    moment: Moment
    """Where the run was killed."""
    resumed_at: int
    """Step of the checkpoint it went on from."""
    steps: int
    """Steps of the whole run."""
    compared: list[Comparison] = field(default_factory=list)
    """Everything that was looked at."""
    reason: str | None = None
    """The first thing that differs and where it comes from; None when all is the same."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows that were kept of each split that was shortened."""

    @property
    def same(self) -> bool:
        """Tell whether the two runs left the same behind."""
        return self.reason is None


def verify(
    job: TracedJob,
    *,
    phase: str | None = None,
    draw: random.Random | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> VerifyResult:
    """Run, kill, resume, compare.

    Args:
        job: The configuration, a folder to work in (as `folder`), the lengths, and the step to kill it at.
        phase: Phase of the run to kill it in, one of `PHASES`; None draws one.
        draw: Draws step and phase.
        progress: Told what is about to be done.

    Raises:
        UserError: The configuration does not run to its end, or there is no such moment in it.
    """
    base, draw = Path(job.folder), draw or random.Random()
    base.mkdir(parents=True, exist_ok=True)
    progress("1/3 running without interruption")
    whole, trace = traced(job, "whole")
    names = list(dict.fromkeys(row["member"] for row in trace))
    if job.member is not None and job.member not in names:
        raise UserError("no such member", key="--member", received=job.member, choices=names)
    member = job.member if job.member is not None else draw.choice(names)
    reference = _of_member(trace, member)
    moment = choose_moment(reference, at=job.at, phase=phase, draw=draw)
    progress(f"2/3 running again, killed {moment.describe()}")
    again = replace(whole, folder=job.folder)
    _, cut = traced(replace(again, end_at=moment), "killed", want=-SIGKILL)
    progress("3/3 going on")
    _, resumed = traced(replace(again, resume=True), "resumed", run="killed")
    cut, resumed = _of_member(cut, member), _of_member(resumed, member)
    compared = compare_runs(base / "whole", base / "killed")
    different = [item for item in compared if item.different]
    repeated, parted = first_mismatch(reference, cut), first_mismatch(reference, resumed)
    reason = None
    if different or repeated or parted:
        if repeated is None and parted is not None:  # one more run that nobody interrupts tells whether it's the resume
            repeated = first_mismatch(reference, _of_member(traced(again, "again")[1], member))
        reason = explain(repeated, parted, different)
    start = next((row["step"] for row in resumed if row["phase"] == "start"), 0)
    return VerifyResult(moment, start, len(_steps_of(reference, "step")), compared, reason, whole.rows)


def traced(
    job: TracedJob, name: str, *, run: str | None = None, want: int = 0, **variables: str
) -> tuple[TracedJob, list[dict[str, Any]]]:
    """Do a job below its folder, under a name; return it as it was done, and the trace that it left.

    Args:
        job: The job; its folder is the one to work in.
        name: Names its files.
        run: Name of the run's folder where that is another.
        want: See `run_in_process`.
        **variables: See `run_in_process`.
    """
    base = Path(job.folder)
    trace, file = base / f"{name}.jsonl", base / f"{name}.json"
    file.write_text(json.dumps(asdict(replace(job, folder=str(base / (run or name)), trace=str(trace)))), "utf-8")
    run_in_process(file, want=want, **variables)
    return TracedJob(**json.loads(file.read_text(encoding="utf-8"))), read_trace(trace)


def run_in_process(file: Path, *, want: int = 0, **variables: str) -> None:
    """Have a process do a job, and see that it ends as it should.

    Args:
        file: The job; a file beside it takes what the process says.
        want: The exit status it should end with, negative for a signal.
        **variables: Further ones of its environment.

    Raises:
        UserError: It ended otherwise.
    """
    command, log = lightkit_command("verify-resume", "--worker", str(file)), file.with_suffix(".log")
    with log.open("wb") as output:
        # A session of its own: the process kills its whole group, and must not take us along.
        process = Child(command, output=output, variables={**os.environ, "PYTHONPATH": lightkit_path(), **variables})
        try:
            code = process.wait()
        finally:
            process.end()
    if code == want:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The last line of the other process points to where this error is explained, and this one's own will.
    lines = [line for line in lines if not line.startswith(POINTER)][-_LOG_LINES:]
    if want:
        what = "the moment to be killed at never came: the run does something else when it is repeated"
        raise UserError(what, key="verify-resume", received="\n".join(lines) or None, exit_code=FAILED)
    kind = "the resumed run" if file.stem == "resumed" else "the run"
    what = f"{kind} ended with status {code}:\n" + "\n".join(lines).removeprefix("error: ")
    raise UserError(what, key="verify-resume", exit_code=code if code > 0 else FAILED)


def choose_moment(
    reference: Sequence[dict[str, Any]], *, at: int | None, phase: str | None, draw: random.Random
) -> Moment:
    """Choose a moment of a run, after its first checkpoint is on the disk, to kill it at.

    Args:
        reference: The trace of the run.
        at: The step; None draws one.
        phase: The phase; None draws one.
        draw: Draws.

    Raises:
        UserError: There is no such moment.
    """
    saves, name = _steps_of(reference, "save"), phase or "moment"
    if len(saves) < 3:
        raise UserError("the run is too short to save three times", key="verify-resume", fix="more --steps or --epochs")
    phases = PHASES if phase is None else (phase,)
    # The second save waits for the first one, which may be written while training goes on.
    rows = [row for row in reference if row["phase"] in phases and row["step"] > saves[1]]
    possible = [Moment(*(row[field] for field in Moment._fields if field in row)) for row in rows]
    if not possible:
        raise UserError(f"the run has no {name} after its first checkpoint", key="--phase", received=phase)
    steps = sorted({moment.step for moment in possible})
    if at is not None and at not in steps:
        what = f"the shortened run has no {name} there to be killed at"
        raise UserError(what, key="--at", received=at, choices=map(str, steps))
    step = draw.choice(_telling(steps, saves, _steps_of(reference, "epoch"))) if at is None else at
    kind = draw.choice(sorted({moment.phase for moment in possible if moment.step == step}))
    numbers = [moment for moment in possible if (moment.step, moment.phase) == (step, kind)]
    # Drawn from the step, so that the same step and phase can be asked for again.
    return numbers[mix("moment", step, kind) % len(numbers)]


def _telling(steps: list[int], saves: list[int], ends: list[int]) -> list[int]:
    """Return the steps that prove most: between two ends of epochs, and resumed in mid-epoch."""
    between = [step for step in steps if ends and ends[0] < step < ends[-1]]
    inside = [step for step in between if max(save for save in saves if save < step) not in ends]
    return inside or between or steps


def _of_member(trace: Sequence[dict[str, Any]], member: str) -> list[dict[str, Any]]:
    """Return the lines of a trace that one member of an ensemble has written; all of them in a plain run."""
    return [row for row in trace if row["member"] == member]


def _steps_of(trace: Sequence[dict[str, Any]], phase: str) -> list[int]:
    """Return the steps at which a phase comes, in their order."""
    return sorted({row["step"] for row in trace if row["phase"] == phase})
