"""Groups of runs beside a baseline over their seeds: which runs are paired, which test is used, and what it says."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightkit.common import run_files
from lightkit.compare.grouping import Group, replicate
from lightkit.compare.statistics import LEAST_SEEDS, MeanTest, holm, paired, resolution, unpaired
from lightkit.runs.filters import as_number
from lightkit.runs.record import RunRecord, as_dict

LEVEL = 0.05
"""p below which a difference counts as more than chance."""
_COUNTING = ("torchmetrics.classification.", "torchmetrics.retrieval.")
"""Where metrics come from that move by about one row's worth when one row is predicted otherwise."""
_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class SeedTest:
    """A group and the baseline over their seeds.

    Attributes:
        label: The group's.
        metric: What was measured.
        test: The tests; None where one of both has no value of a finished run.
        p_holm: p of the t-test, adjusted to the number of groups.
        verdict: In words.
        same_seeds: Whether both have finished the same seeds and folds.
    """

    label: str
    metric: str
    test: MeanTest | None
    p_holm: float | None
    verdict: str
    same_seeds: bool = True


def pair_runs(baseline: Group, other: Group) -> list[tuple[RunRecord, RunRecord]]:
    """Return the finished runs of the baseline and of another group with the same seed, split and fold."""
    first = {replicate(run): run for run in _finished(baseline)}
    first.pop(None, None)
    return [(first[mark], run) for run in _finished(other) if (mark := replicate(run)) in first]


def compare_seeds(baseline: Group, others: Mapping[str, Group], metrics: Mapping[str, str | None]) -> list[SeedTest]:
    """Test every group against the baseline.

    Args:
        baseline: The baseline.
        others: The other groups by label.
        metrics: Names of metrics, with `min` or `max` for which values are better.
    """
    found = list[SeedTest]()
    for name, mode in metrics.items():
        tests = {label: _mean_test(baseline, other, name) for label, other in others.items()}
        adjusted = holm([test.t if test is not None else None for test in tests.values()])
        for (label, test), p in zip(tests.items(), adjusted):
            same = _replicates(baseline, name) == _replicates(others[label], name)
            found.append(SeedTest(label, name, test, p, _verdict(test, p, mode), same))
    return found


def _finished(group: Group) -> list[RunRecord]:
    return [run for run in group.runs if run.status == "finished"]


def _replicates(group: Group, metric: str) -> set[tuple[int, ...] | None]:
    return {replicate(run) for run in _finished(group) if metric in run.values}


def _mean_test(baseline: Group, other: Group, metric: str) -> MeanTest | None:
    """Pair the seeds of both; where these are too few, and each has enough, compare all runs without pairing them."""
    own, theirs = ([run for run in _finished(group) if metric in run.values] for group in (baseline, other))
    if not own or not theirs:
        return None
    first, second = ([run.values[metric] for run in runs] for runs in (own, theirs))
    step = resolution([*first, *second], _rows(own[0], metric))
    overlap = max(_overlap(runs, metric) for runs in (own, theirs))
    both = [
        (a.values[metric], b.values[metric])
        for a, b in pair_runs(baseline, other)
        if {metric} <= {*a.values} & {*b.values}
    ]
    if len(both) < LEAST_SEEDS <= min(len(first), len(second)) or not both:
        return unpaired(first, second, step=step, overlap=overlap)
    return paired([b - a for a, b in both], step=step, overlap=overlap)


def _rows(run: RunRecord, metric: str) -> int | None:
    """Return the number of rows that a metric counts; None where it counts none, or that is not known."""
    split, _, name = metric.partition("/")
    target = as_dict(as_dict(as_dict(run.config.get("metrics")).get(split)).get(name)).get("_target_")
    if split not in _SPLITS or not isinstance(target, str) or not target.startswith(_COUNTING):
        return None
    import numpy as np

    try:
        with (run.folder / run_files.ROWS).open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return int((kept["split"] == _SPLITS.index(split)).sum()) or None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _overlap(runs: Sequence[RunRecord], metric: str) -> float:
    """Return measured rows over training rows where runs differ in their split; 0 where all have the same."""
    marks = {replicate(run) for run in runs}
    if len({mark[1:] for mark in marks if mark}) < 2:
        return 0.0
    keys = runs[0].keys
    val, test = (as_number(keys.get(f"data.split.{name}")) or 0.0 for name in ("val", "test"))
    if keys.get("data.split.by") == "fold":
        test = 1 / max(2.0, as_number(keys.get("data.split.folds")) or 2.0)
    train = max(1 - val - test, 0.01)
    return (val if metric.startswith("val/") else test) / train


def _verdict(test: MeanTest | None, p_holm: float | None, mode: str | None) -> str:
    if test is None:
        return "no finished run"
    if p_holm is None:
        return "too few seeds"
    if test.equal:
        return "no difference"
    if p_holm >= LEVEL:
        return "may be chance"
    if mode is None:
        return "higher" if test.mean > 0 else "lower"
    return "better" if (test.mean > 0) == (mode == "max") else "worse"
