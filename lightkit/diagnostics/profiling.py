"""PyTorch's profiler over some steps of a run: a trace for TensorBoard and Perfetto, and where the time went."""

from __future__ import annotations

import bisect
import gzip
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from lightkit.diagnostics.spans import Spans
from lightkit.processes.files import replacing

MILLI = 1e3
OTHER = "other"
"""What of the time has no name."""
OPERATORS_SHOWN = 10
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")

Table = tuple[str, list[str], list[list[str]]]
"""Title, columns and rows."""


class Operator(NamedTuple):
    """An operator of PyTorch, without those it calls."""

    name: str
    """As PyTorch has it: `aten::mm`."""
    calls: int
    """How often it was called."""
    host_seconds: float
    """Time of the processor."""
    device_seconds: float
    """Time of the GPU, in the kernels it started."""


class Recorded(NamedTuple):
    """What was seen of the profiled steps."""

    first: int
    """The first of them, counted from 1."""
    steps: int
    """How many."""
    seconds: float
    """How long they took."""
    host: Mapping[str, float]
    """Seconds of the host by stretch."""
    device: Mapping[str, float]
    """Seconds of the GPU by the stretch that started its work; empty without one."""
    operators: Sequence[Operator]
    """All operators."""


def device_seconds(trace: Mapping[str, Any], names: Collection[str]) -> dict[str, float]:
    """Add up GPU time by the stretch of the loop in which the work was started, whichever thread started it.

    Autograd starts the kernels of a backward pass in a thread of its own, so time is what connects them, not nesting.

    Args:
        trace: A trace in Chrome's format, as PyTorch's profiler writes it.
        names: The stretches. Of one within another the outer one counts.

    Returns:
        Seconds by name, and those of none of them as `other`; empty where no GPU was seen.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    marks = [event for event in events if event.get("cat") == "user_annotation" and event["name"] in names]
    stretches = list[tuple[float, float, str]]()  # begin, end and name of those that are in no other one
    for event in sorted(marks, key=lambda event: float(event["ts"])):
        if not stretches or event["ts"] >= stretches[-1][1]:
            stretches.append((event["ts"], event["ts"] + event["dur"], event["name"]))
    starts = [began for began, _, _ in stretches]
    launched = {_correlation(event): event["ts"] for event in events if event.get("cat") in _LAUNCHES}
    seconds: dict[str, float] = {}
    for event in events:
        if event.get("cat") in _WORK:
            moment = launched.get(_correlation(event), -1.0)
            at = bisect.bisect_right(starts, moment) - 1
            name = stretches[at][2] if at >= 0 and moment <= stretches[at][1] else OTHER
            seconds[name] = seconds.get(name, 0.0) + event["dur"] / 1e6  # microseconds
    return seconds


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def operators(averages: Any) -> list[Operator]:
    """Return the operators in what `torch.profiler.profile.key_averages` gives."""
    return [
        Operator(row.key, row.count, row.self_cpu_time_total / 1e6, row.self_device_time_total / 1e6)
        for row in averages
        if row.device_type.name == "CPU" and not row.is_user_annotation
    ]


def stretches_table(
    recorded: Recorded | None, seconds: Mapping[str, float], whole: float, *, order: Sequence[str]
) -> Table:
    """Make the table of where the time of the loop went: in the profiled steps, and in the whole run.

    Args:
        recorded: The profiled steps, if there are any.
        seconds: Seconds of the host by stretch, in the whole run.
        whole: Seconds of the whole run.
        order: Names of all stretches, in the order to show them.
    """
    title = "where the time goes" + ("" if recorded is None else f", in {_steps(recorded)} and in the whole run")
    shown = [name for name in order if seconds.get(name) or (recorded and recorded.device.get(name))]
    columns, cells = ["", "run s", "share %"], [_cells_of(shown, seconds, whole, each=1.0)]
    if recorded is not None:
        columns = ["", "ms a step", "share %", *columns[1:]]
        cells.insert(0, _cells_of(shown, recorded.host, recorded.seconds, each=MILLI / recorded.steps))
    if recorded is not None and recorded.device:
        columns[3:3] = ["GPU ms a step", "GPU share %"]
        busy = sum(recorded.device.values())
        cells.insert(1, _cells_of(shown, recorded.device, busy, each=MILLI / recorded.steps))
    rows = [[name, *(cell for column in cells for cell in column[at])] for at, name in enumerate([*shown, OTHER])]
    return title, columns, [*rows, ["together", *(cell for column in cells for cell in column[-1])]]


def _cells_of(names: Sequence[str], seconds: Mapping[str, float], whole: float, *, each: float) -> list[list[str]]:
    """Return time and share of every name, of what is left, and of everything."""
    known = [seconds.get(name, 0.0) for name in names]
    values = (*known, max(0.0, whole - sum(known)), whole)
    return [[f"{value * each:.3f}", f"{100 * value / whole if whole else 0.0:.1f}"] for value in values]


def operators_table(recorded: Recorded) -> Table:
    """Make the table of the operators that cost most, by the time of the GPU where there is one."""
    on_device = bool(recorded.device)
    ranked = sorted(recorded.operators, key=lambda found: -_cost(found, on_device=on_device))
    whole = sum(_cost(found, on_device=on_device) for found in ranked)
    columns = ["operator", "calls a step", *(["GPU ms a step"] if on_device else []), "ms a step", "share %"]
    each, rows = MILLI / recorded.steps, []
    for found in ranked[:OPERATORS_SHOWN]:
        device = [f"{found.device_seconds * each:.3f}"] if on_device else []
        share = 100 * _cost(found, on_device=on_device) / whole if whole else 0.0
        calls = f"{round(found.calls / recorded.steps, 1):g}"
        rows.append([found.name, calls, *device, f"{found.host_seconds * each:.3f}", f"{share:.1f}"])
    return f"operators that cost most, without what they call, in {_steps(recorded)}", columns, rows


def _cost(found: Operator, *, on_device: bool) -> float:
    return found.device_seconds if on_device else found.host_seconds


def _steps(recorded: Recorded) -> str:
    last = recorded.first + recorded.steps - 1
    return f"step {last}" if recorded.steps == 1 else f"steps {recorded.first} to {last}"


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
            acc_events=True,  # there is one cycle only; PyTorch warns without
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
