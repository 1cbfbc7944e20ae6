"""PyTorch's profiler over some steps of a run: a trace for TensorBoard and Perfetto, and where the time went."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from lightkit.diagnostics.hotspots import Recorded, device_seconds, operators
from lightkit.diagnostics.spans import Spans
from lightkit.processes.files import replacing

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
        """Return the window for a run with `left` steps to do: as many of the steps as it has, then of the warm-up."""
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


class Recorder(Spans):
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
        super().__init__(device)
        self.recorded: Recorded | None = None
        """What was seen of the window, as soon as it is over."""
        self.trace: Path | None = None
        """The file of the trace, likewise."""
        self._window, self._device, self._folder, self._tell, self._rank = window, device, folder, tell, rank
        self._details, self._profile = details or Details(), None  # type: Details, Any
        self._taken, self._done, self._began, self._outside = 0, 0, perf_counter(), 0.0
        self._first, self._since, self._done_before, self._before = 0, 0.0, 0, dict[str, float]()

    @property
    def _end(self) -> int:
        """Steps up to the end of the window."""
        return self._window.skip + self._window.warmup + self._window.steps

    @property
    def whole(self) -> float:
        """Seconds since this was made, without those that recording took."""
        return perf_counter() - self._began - self._outside

    def before_step(self, step: int) -> float:
        """Begin, go on with or end the recording where it is time; see `NoSpans.before_step`."""
        window, at = self._window, self._taken
        self._taken += 1
        if at == self._end:
            self._wait()
        began = perf_counter()
        with self._told():
            if window.steps and at == window.skip:
                self._start(step)
            elif at == self._end:
                self._finish()
            elif self._profile is not None:
                self._go_on(step, at)
        took = perf_counter() - began
        self._outside += took
        return took

    def after_step(self) -> None:
        """See `NoSpans.after_step`."""
        self._done += 1

    def close(self) -> None:
        """Write, after the last step, what there is of a window that is not over."""
        self._wait()
        began = perf_counter()
        with self._told():
            if self._taken > self._window.skip + self._window.warmup:
                self._finish()
            elif self._window.steps:
                self._tell("profile nothing was recorded: the run ended before the steps to profile")
                self._stop()
        self._outside += perf_counter() - began

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell what goes wrong inside, and end the recording."""
        try:
            yield
        except _FAILURES as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._tell(f"profile not all of it could be recorded: {reason}")
            with suppress(*_FAILURES):  # one that goes on would take time and memory to the end of the run
                self._stop()

    def _start(self, step: int) -> None:
        """Begin with the warm-up, or with the steps themselves where there is none."""
        if torch.autograd._profiler_enabled():
            self._tell("profile no trace: another profiler is at work in this process")
            return
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell the terminal about every start and stop
        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])
        details, warmup = self._details, self._window.warmup
        profiler = profile(
            activities=kinds,
            schedule=lambda number: ProfilerAction.WARMUP if number < warmup else ProfilerAction.RECORD,
            record_shapes=details.shapes,
            profile_memory=details.memory,
            with_stack=details.stacks,
        )
        profiler.start()
        self._profile = profiler
        if not self._window.warmup:
            self._begin(step)

    def _go_on(self, step: int, at: int) -> None:
        """Go to the next step; from the first one that is kept on, the time counts."""
        begins = at == self._window.skip + self._window.warmup
        if begins:
            self._wait(counted=False)  # what the GPU still has to do of the steps before is not part of it
        self._profile.step()
        if begins:
            self._begin(step)

    def _begin(self, step: int) -> None:
        self.traced, self._first = True, step + 1
        self._since, self._done_before, self._before = perf_counter(), self._done, dict(self.seconds)

    def _stop(self) -> Any:
        """End the recording; the profiler, if there was one."""
        profiler, self._profile, self.traced = self._profile, None, False
        if profiler is not None:
            profiler.stop()
        return profiler

    def _finish(self) -> None:
        """Stop, and write down what was seen."""
        seconds = perf_counter() - self._since
        profiler = self._stop()
        if profiler is None:
            return
        steps = max(1, self._done - self._done_before)
        host = {name: value - self._before.get(name, 0.0) for name, value in self.seconds.items()}
        self.recorded = Recorded(self._first, steps, seconds, host, {}, operators(profiler.key_averages()))
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"rank{self._rank}-step{self._first}{SUFFIX}"
        with replacing(path, scratch=f".{path.name}") as unfinished:  # its name says that it is to be compressed
            profiler.export_chrome_trace(str(unfinished))
        self.trace = path
        if self._device.type == "cuda":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                device = device_seconds(json.load(file), STRETCHES)
            if not device:
                self._tell("profile no work of the GPU was seen: another profiler (nsys) may have it")
            self.recorded = self.recorded._replace(device=device)

    def _wait(self, *, counted: bool = True) -> None:
        """Wait for the GPU while one is profiled."""
        if self._profile is None or self._device.type != "cuda":
            return
        # What the GPU failed at shows in the loop too.
        with suppress(RuntimeError), self.span("device") if counted else nullcontext():
            torch.cuda.synchronize(self._device)
