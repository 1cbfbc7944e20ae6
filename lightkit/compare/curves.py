"""What groups of runs have logged, as curves: the mean over seeds at each step, with a band of one deviation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lightkit.compare.grouping import Group
from lightkit.compare.statistics import mean_and_sd
from lightkit.runs.reading import read_metrics

_LEFT_OUT = ("speed/", "system/")
"""What is about the machine."""
_POINTS = 300
"""Points of a curve; of a longer one every so many-th."""


@dataclass(frozen=True)
class RunCurve:
    """A metric over the steps of a group.

    Attributes:
        steps: Optimizer steps, ascending.
        epochs: Epochs done at each.
        means: Over the seeds that have come so far.
        deviations: Standard deviations over them, 0 of one.
        seeds: How many these are.
    """

    steps: list[int]
    epochs: list[int]
    means: list[float]
    deviations: list[float]
    seeds: list[int]


def read_curves(group: Group) -> dict[str, RunCurve]:
    """Read the curves of a group, by the name of the metric; a metric with one point has none.

    Args:
        group: Its runs may be of different length, and may go on.
    """
    points = defaultdict[str, defaultdict[int, list[float]]](lambda: defaultdict(list))
    epochs = dict[int, int]()
    for run in group.runs:
        for name, by_step in _points(read_metrics(run.folder), epochs).items():
            for step, value in by_step.items():
                points[name][step].append(value)
    curves = dict[str, RunCurve]()
    for name, values in points.items():
        if len(values) > 1:
            steps = thinned(sorted(values))
            spread = [mean_and_sd(values[step]) for step in steps]
            curves[name] = RunCurve(
                steps=steps,
                epochs=[epochs[step] for step in steps],
                means=[mean or 0.0 for mean, _ in spread],
                deviations=[sd or 0.0 for _, sd in spread],
                seeds=[len(values[step]) for step in steps],
            )
    return curves


def _points(rows: Iterable[dict[str, Any]], epochs: dict[int, int]) -> dict[str, dict[int, float]]:
    """Return the values of a run by metric and step; of a step that stands twice the last one."""
    found = defaultdict[str, dict[int, float]](dict)
    for row in rows:
        step, epoch = row["step"], row.get("epoch")
        epochs[step] = max(epoch if isinstance(epoch, int) else 0, epochs.get(step, 0))
        for name, value in row.items():
            if "/" in name and not name.startswith(_LEFT_OUT) and isinstance(value, int | float):
                found[name][step] = float(value)
    return found


def thinned(steps: Sequence[int]) -> list[int]:
    """Leave out of many steps all but every so many-th, and keep the last one."""
    stride = -(-len(steps) // _POINTS)
    kept = list(steps[::stride]) if steps else []
    return kept if not steps or kept[-1] == steps[-1] else [*kept, steps[-1]]
