"""A run under a profiler, where the configuration asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import Learner
from lightkit.common import run_files
from lightkit.config import to_plain
from lightkit.diagnostics.spans import NoSpans
from lightkit.loggers import Logger
from lightkit.loggers.files import replace_file
from lightkit.loggers.wording import plain_table

DETAILS = ("memory", "stacks", "shapes")


@contextmanager
def profiled(cfg: DictConfig, folder: Path, learner: Learner, *, logger: Logger) -> Iterator[NoSpans]:
    """Profile the run while inside, where the configuration asks for it; report afterwards where the time went.

    Args:
        cfg: The configuration.
        folder: The run's folder.
        learner: What is trained; its state tells how many steps there are to do.
        logger: Takes the tables.

    Yields:
        What profiles the loop; nothing, unless `profile` is set and there are steps to do.
    """
    state = learner.state
    left = learner.timetable.total_steps - state.step
    # The key is not in the file of a run that began before there was such a thing.
    if not cfg.get("profile") or left <= 0 or state.stop_reason is not None:
        yield NoSpans()
        return
    from lightkit.diagnostics.profiling import Details, Recorder, Window

    options = to_plain(cfg.logger.get("profile")) or {}
    names = {"skip_steps": "skip", "warmup_steps": "warmup", "steps": "steps"}
    wanted = Window(**{field: options[name] for name, field in names.items() if name in options})
    details = Details(**{name: options[name] for name in DETAILS if name in options})
    window = wanted.fitted(left)
    if window.steps:
        first = state.step + window.skip + window.warmup + 1
        why = f": the run has only {window.skip + window.warmup + window.steps} left" if window != wanted else ""
        warmup = f", after {window.warmup} to warm up" if window.warmup else ""
        logger.message(f"profile steps {first} to {first + window.steps - 1} will be recorded{warmup}{why}")
    else:
        logger.message("profile time is counted, and nothing recorded (logger.profile.steps=0)")
    place, ranks = folder / run_files.PROFILE, learner.engine.ranks
    recorder = Recorder(window, learner.engine.device, place, tell=logger.message, details=details, rank=ranks.rank)
    try:
        yield recorder
    except BaseException:
        with suppress(OSError):  # a full disk fails here once more, and says less
            _conclude(recorder, place, logger, step=state.step, main=ranks.main)
        raise
    _conclude(recorder, place, logger, step=state.step, main=ranks.main)


def _conclude(recorder: Any, place: Path, logger: Logger, *, step: int, main: bool) -> None:
    """Write what is left; show the tables, and keep them in a file and in TensorBoard."""
    recorder.close()
    if not main:
        return
    from lightkit.diagnostics.hotspots import operators_table, stretches_table
    from lightkit.diagnostics.profiling import STRETCHES

    tables = [stretches_table(recorder.recorded, recorder.seconds, recorder.whole, order=STRETCHES)]
    if recorder.recorded is not None:
        tables.append(operators_table(recorder.recorded))
    hints = list[str]()
    if recorder.trace is not None:
        hints.append(f"profile {recorder.trace}: open it in https://ui.perfetto.dev,")
        hints.append(f"        or `pip install torch-tb-profiler` and `tensorboard --logdir {place}`")
    text = "\n\n".join([*(plain_table(*table) for table in tables), "\n".join(hints)]).rstrip() + "\n"
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_file(place / run_files.PROFILE_SUMMARY, text)
    except OSError as error:
        logger.message(f"profile {place / run_files.PROFILE_SUMMARY} cannot be written: {error.strerror}")
    for table in tables:
        logger.table(*table)
    logger.text("profile", f"```text\n{text}```", step=step)
    for line in hints:
        logger.message(line)
