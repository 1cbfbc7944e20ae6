"""Runs that write a trace, as jobs for processes of their own that may be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.build import Components, build_engine, build_splits, build_timetable
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.device.ranks import Ranks
from lightkit.loggers import Logger
from lightkit.runner.memory.batches import Batch, settled
from lightkit.runner.run import Runner
from lightkit.trainer import State
from lightkit.trainer.timetable import Timetable
from lightkit.trainer.trace import Moment, Trace, TracedTask

CALLBACK = "verify_resume"


class TracedRunner(Runner):
    """A run that writes down what it does, and may end at a moment of it.

    Args:
        cfg: See `Runner`.
        folder: See `Runner`.
        overrides: See `Runner`.
        trace: File of the trace; appended to.
        end_at: Moment at which the process is killed.
        end: What is called there instead.
    """

    def __init__(
        self,
        cfg: DictConfig,
        folder: Path,
        *,
        overrides: Sequence[str] = (),
        trace: Path,
        end_at: Moment | None = None,
        end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(cfg, folder, overrides=overrides)
        self._trace = Trace(trace, Path(folder) / "checkpoints", end_at=end_at, end=end)

    def _build(self, *, pretrained: bool) -> Components:
        parts = super()._build(pretrained=pretrained)
        callbacks = {**parts.callbacks, CALLBACK: self._trace}
        return replace(parts, task=TracedTask(parts.task, self._trace), callbacks=callbacks)

    def _saver(self, parts: Components, state: State, logger: Logger) -> Callable[[float | None], None]:
        save = super()._saver(parts, state, logger)

        def traced(value: float | None) -> None:
            with self._trace.saving():
                save(value)
                if parts.store:
                    parts.store.flush()  # otherwise the moments of the writing would fall anywhere

        return traced


@dataclass(frozen=True)
class Job:
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
    epochs: int = 2
    """Most epochs."""
    steps: int = 40
    """Most optimizer steps."""
    at: int | None = None
    """Step the run will be killed at; None when that is not known yet."""
    end_at: tuple[str, int, int] | None = None
    """Moment at which the process is killed."""
    resume: bool = False
    """Go on with the run in the folder."""
    settings: tuple[str, ...] = ()
    """Overrides that shorten the run; found out by the first job."""

    def write(self, path: Path) -> Path:
        """Write the job to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read it back."""
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)


def work(job: Job, *, end: Callable[[], None] | None = None) -> dict[str, Any]:
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
        settings = job.settings or settings_of(job)
        folder.parent.joinpath("settings.json").write_text(json.dumps(settings), encoding="utf-8")
        cfg = compose([*job.overrides, *settings], config_dir=job.config_dir, config_name=job.config_name).cfg
    return TracedRunner(cfg, folder, trace=Path(job.trace), end_at=end_at, end=end).run(resume=job.resume)


def settings_of(job: Job) -> tuple[str, ...]:
    """What makes the run short and lets it save often enough; nothing of it touches what is random.

    The lengths depend on the number of samples, so the data is loaded to find them.
    """
    cfg = compose(job.overrides, config_dir=job.config_dir, config_name=job.config_name).cfg
    if cfg.device.nproc > 1:
        fix = "device.nproc=1: the order of samples and what is saved do not depend on it"
        raise UserError(
            "runs of one process only can be verified", key="device.nproc", received=cfg.device.nproc, fix=fix
        )
    asked = cfg.device.batch_size is not None
    cfg, _ = settled(cfg, Ranks())  # once: all runs have this batch
    found = Batch(cfg.data.batch_size, cfg.trainer.accumulate).settings() if asked else {}
    data = build_splits(cfg, build_engine(cfg))
    try:
        table = build_timetable(cfg, data)
    finally:
        data.close()
    total = min(table.total_steps, job.steps, job.epochs * table.steps_per_epoch)
    return (
        *(f"{key}={'null' if value is None else value}" for key, value in found.items()),
        f"trainer.steps={total}",
        "checkpoint.enabled=true",
        f"checkpoint.every_steps={_save_steps(table, total, job.at)}",
        f"logger.every_steps={min(table.log_steps, max(1, total // 10))}",
        "logger.console.style=quiet",
        "profile=false",
    )


def _save_steps(table: Timetable, total: int, at: int | None) -> int:
    """Steps between two saves: about five in the run; one at the step of the kill and two before it."""
    most = min(max(1, total // 5), table.save_steps or total)
    if at is None:
        return most
    return max((number for number in range(1, min(most, at // 3) + 1) if at % number == 0), default=1)
