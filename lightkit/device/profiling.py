"""PyTorch's profiler over some steps of a run: a trace for TensorBoard and Perfetto, and where the time went."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from lightkit.device.hotspots import Recorded, device_seconds, operators
from lightkit.device.spans import Spans

STRETCHES = (
    "data",
    "forward",
    "backward",
    "optimizer",
    "metrics",
    "checks",
    "callbacks",
    "logging",
    "validation",
    "checkpoint",
    "tuning",
    "device",
)
"""What the time of a loop goes into: `forward` is model and loss, `checks` are those of the loss, `tuning` is what
fine-tuning does between steps, and `device` waits for the GPU at both ends of the profiled steps."""
SUFFIX = ".pt.trace.json.gz"
"""By this end of a name TensorBoard's plugin finds traces."""
_FAILURES = (RuntimeError, AssertionError, ValueError, OSError)


@dataclass(frozen=True)
class Window:
    """Which steps are profiled.

    Args:
        skip: Optimizer steps before anything is recorded.
        warmup: Steps after them that are recorded and thrown away: the first ones under a profiler are slow.
        steps: Steps after these that are kept; 0 records nothing.
    """

    skip: int = 10
    warmup: int = 3
    steps: int = 5

    def fitted(self, left: int) -> Window:
        """The same for a run with `left` steps to do: as many of the steps as it has, then of the warm-up."""
        if self.steps == 0 or left >= self.skip + self.warmup + self.steps:
            return self
        steps = min(self.steps, max(1, left - 1))
        warmup = min(self.warmup, left - steps)
        return Window(skip=left - steps - warmup, warmup=warmup, steps=steps)


@dataclass(frozen=True)
class Details:
    """What is recorded of every operator; all of it makes it slower, and the trace larger.

    Args:
        memory: What it takes and gives back.
        stacks: The lines of Python that called it.
        shapes: Shapes of its inputs.
    """

    memory: bool = False
    stacks: bool = False
    shapes: bool = False


class Recorder:
    """Profiles the steps of a window, and counts where the time of all steps goes.

    Nothing that goes wrong here ends the run: it is told.

    Args:
        window: The steps, counted from the first one of this process.
        device: Where the run computes.
        folder: Where traces go; made when there is one.
        tell: Takes lines about what goes wrong.
        details: What is recorded of every operator.
        rank: Number of the process among those that train together.
    """

    def __init__(
        self,
        window: Window,
        device: torch.device,
        folder: Path,
        *,
        tell: Callable[[str], None],
        details: Details | None = None,
        rank: int = 0,
    ) -> None:
        self.spans = Spans(device)
        """Counts the time of every stretch of the loop."""
        self.recorded: Recorded | None = None
        """What was seen of the window, as soon as it is over."""
        self.trace: Path | None = None
        """The file of the trace, likewise."""
        self._window, self._device, self._folder, self._tell, self._rank = window, device, folder, tell, rank
        self._details, self._profile = details or Details(), None  # type: Details, Any
        self._taken, self._first, self._began, self._outside = 0, 0, perf_counter(), 0.0
        self._since, self._before = 0.0, dict[str, float]()

    @property
    def whole(self) -> float:
        """Seconds since this was made, without those that recording took."""
        return perf_counter() - self._began - self._outside

    def before_step(self, step: int) -> float:
        """What is due before an optimizer step.

        Args:
            step: Optimizer steps the run has taken.

        Returns:
            Seconds that it took, which are no training.
        """
        began, outside = perf_counter(), self._outside
        window, at = self._window, self._taken
        self._taken += 1
        if window.steps and at == window.skip:
            self._start()
        elif self._profile is not None and at == window.skip + window.warmup + window.steps:
            self._finish()
        elif self._profile is not None:
            self._profile.step()
        if self._profile is not None and at == window.skip + window.warmup:
            self._measure(step)
        self._outside = outside + perf_counter() - began
        return self._outside - outside

    def close(self) -> None:
        """After the last step: write what there is of a window that is not over."""
        if self._profile is None:
            if self.recorded is None and self._window.steps and self._taken <= self._window.skip:
                self._tell("profile nothing was recorded: the run ended before the steps to profile")
            return
        if self._taken > self._window.skip + self._window.warmup:
            self._finish()
            return
        profiler, self._profile = self._profile, None
        with suppress(*_FAILURES):
            profiler.stop()
        self._tell("profile nothing was recorded: the run ended before the steps to profile")

    def _start(self) -> None:
        """Begin with the warm-up, or with the steps themselves where there is none."""
        if torch.autograd._profiler_enabled():
            self._tell("profile no trace: another profiler is at work in this process")
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell the terminal about every start and stop
        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])
        details = self._details
        try:
            profiler = profile(
                activities=kinds,
                schedule=self._action,
                record_shapes=details.shapes,
                profile_memory=details.memory,
                with_stack=details.stacks,
            )
            profiler.start()
        except _FAILURES as error:
            self._tell(f"profile no trace: PyTorch's profiler does not start: {_reason(error)}")
            return
        self._profile = profiler

    def _action(self, number: int) -> ProfilerAction:
        return ProfilerAction.WARMUP if number < self._window.warmup else ProfilerAction.RECORD

    def _measure(self, step: int) -> None:
        """From here on the time counts; what the GPU still has to do of the steps before does not."""
        self._wait()
        self.spans.traced, self._first = True, step + 1
        self._since, self._before = perf_counter(), dict(self.spans.seconds)

    def _finish(self) -> None:
        """Stop, and write down what was seen."""
        self._wait()
        seconds = perf_counter() - self._since
        self.spans.traced = False
        steps = min(self._taken - self._window.skip - self._window.warmup, self._window.steps)
        host = {name: value - self._before.get(name, 0.0) for name, value in self.spans.seconds.items()}
        profiler, self._profile = self._profile, None
        try:
            profiler.stop()
            found = operators(profiler.key_averages())
            self.recorded = Recorded(self._first, steps, seconds, host, {}, found)
            self._write(profiler)
            self.recorded = self.recorded._replace(device=self._on_device())
        except _FAILURES as error:
            self._tell(f"profile not all of it could be written: {_reason(error)}")

    def _write(self, profiler: Any) -> None:
        """Write the trace, whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank{self._rank}-step{self._first}{SUFFIX}"
        part = path.with_name(f".{path.name}")
        try:
            profiler.export_chrome_trace(str(part))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        self.trace = path

    def _on_device(self) -> dict[str, float]:
        if self._device.type != "cuda" or self.trace is None:
            return {}
        with gzip.open(self.trace, "rt", encoding="utf-8") as file:
            found = device_seconds(json.load(file), STRETCHES)
        if not found:
            self._tell("profile no work of the GPU was seen: another profiler (nsys) may have it")
        return found

    def _wait(self) -> None:
        if self._device.type == "cuda":
            with self.spans("device"):
                torch.cuda.synchronize(self._device)


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
