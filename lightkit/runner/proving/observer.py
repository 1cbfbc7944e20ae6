"""Runs that write a trace of what they do, and may end at a moment of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from lightkit.assembly import Learner
from lightkit.common import run_files
from lightkit.metrics import SplitMetrics
from lightkit.runner.observer import Observer
from lightkit.runner.proving.live_state import live_state, metrics_of, objects_of
from lightkit.runner.proving.trace import Moment, RunTrace, TracedTask
from lightkit.runner.run import Runner

CALLBACK = "verify_resume"


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
        objects = objects_of(learner)
        self._trace.live_state = lambda: live_state({**objects, **metrics_of(learner)})
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
    return Runner(cfg, folder, observer=TraceObserver(run_trace, rows=rows, blocks=blocks))
