"""Runs in forked processes that are really killed, and the comparison of everything they leave behind."""

from __future__ import annotations

import os
import random
import signal
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tests.forkable
import tests.preloaded
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.comparison import compare_runs, read_trace
from lightkit.runner.trace import Moment, traced_runner
from lightkit.runs import folder

FOR_THE_CHILDREN = (tests.forkable, tests.preloaded)
BASE = (
    "logger.console.style=quiet",
    "logger.every_steps=2",
    "metrics.figures=[]",
    "device=cpu",
    "model.hidden=[8]",
    "data.batch_size=16",
    "trainer.epochs=3",
    "checkpoint.every_steps=3",
    "optim.lr=0.01",
)


def configured(*overrides: str, base: Sequence[str] = BASE) -> Any:
    return compose([*base, *overrides]).cfg


def forked(job: Callable[[], Any], log: Path, *, want: int = 0) -> None:
    """Do a job in a child that leads a process group of its own; `want` is its exit status, negative for a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, in later Pythons
        child = os.fork()
    if child == 0:
        _child(job, log)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == want, f"ended with {code} instead of {want}:\n{log.read_text()}"


def _child(job: Callable[[], Any], log: Path) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        folder.environment = lambda **facts: {"named": {}, **facts}  # asking git takes longer than a run
        os.fsync = lambda handle: None  # a killed process loses nothing that was written
        job()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


class Case:
    """A configuration, its uninterrupted run, and the moments it can be killed at."""

    def __init__(self, cfg: Any, place: Path) -> None:
        self.cfg, self.place, self.whole = cfg, place, place / "whole"
        place.mkdir(parents=True, exist_ok=True)
        forked(lambda: traced_runner(cfg, self.whole, trace=place / "whole.jsonl").run(), place / "whole.log")
        self.trace = read_trace(place / "whole.jsonl")

    def moments(self, phase: str) -> list[Moment]:
        """Moments of a phase at which a checkpoint is on the disk for sure."""
        saves = sorted({row["step"] for row in self.trace if row["phase"] == "save"})
        found = [Moment(*(row[name] for name in Moment._fields)) for row in self.trace if row["phase"] == phase]
        return [moment for moment in found if moment.step > saves[1]]

    def kill(self, moment: Moment, name: str, *, sign: int = signal.SIGKILL) -> Path:
        """Run up to the moment."""
        place, trace = self.place / name, self.place / f"{name}.jsonl"
        by_kill = sign == signal.SIGKILL
        end = None if by_kill else lambda: os.kill(os.getpid(), sign)
        run = lambda: traced_runner(self.cfg, place, trace=trace, end_at=moment, end=end).run()  # noqa: E731
        forked(run, self.place / f"{name}.log", want=-sign if by_kill else 128 + sign)
        return place

    def resume(self, place: Path, *overrides: str, before: Callable[[], Any] = lambda: None, want: int = 0) -> None:
        """Go on in another process, as `lightkit resume` does."""

        def job() -> None:
            before()
            Runner(load_run(place, overrides).cfg, place).run(resume=True)

        forked(job, place.with_name(f"{place.name}-resumed.log"), want=want)

    def differences(self, place: Path) -> list[str]:
        """What is not as in the uninterrupted run."""
        compared = compare_runs(self.whole, place)
        empty = {item.name for item in compared if not item.size}
        assert empty <= {"precision", "callbacks", "metrics"}, "nothing was compared"
        return [f"{item.name}: {item.different}" for item in compared if item.different]


def foreign_draws() -> None:
    """What another library may do to the global generators."""
    random.seed(99)
    np.random.seed(98)
    torch.manual_seed(97)
