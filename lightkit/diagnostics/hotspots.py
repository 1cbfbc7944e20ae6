"""Where the time of profiled steps went: device time by stretch of the loop, and the operators that cost most."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

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
    found: dict[str, float] = {}
    for event in events:
        if event.get("cat") in _WORK:
            moment = launched.get(_correlation(event), -1.0)
            at = bisect.bisect_right(starts, moment) - 1
            name = stretches[at][2] if at >= 0 and moment <= stretches[at][1] else OTHER
            found[name] = found.get(name, 0.0) + event["dur"] / 1e6  # microseconds
    return found


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
