"""Groups of runs beside a baseline over their seeds: which runs are paired, which test is used, and what it says."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightkit.common import run_files
from lightkit.common.argument_checks import FOLDS
from lightkit.common.csv_lines import read_csv
from lightkit.common.errors import UserError
from lightkit.common.ranking import LEAST_SEEDS, UNDECIDED
from lightkit.compare.grouping import Group
from lightkit.compare.statistics import (
    LEVEL,
    Bootstrap,
    McNemar,
    MeanTest,
    bootstrap,
    holm,
    mcnemar,
    paired,
    resolution,
    runs_needed,
    unpaired,
)
from lightkit.runs.filters import as_number
from lightkit.runs.record import RunRecord, as_dict

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
        needed: See `runs_needed`; None also where the verdict is none of `UNDECIDED`.
    """

    label: str
    metric: str
    test: MeanTest | None
    p_holm: float | None
    verdict: str
    same_seeds: bool = True
    needed: int | None = None


def pair_runs(baseline: Group, other: Group) -> list[tuple[RunRecord, RunRecord]]:
    """Return the finished runs of the baseline and of another group with the same seed, split and fold."""
    first = {run.replicate: run for run in _finished(baseline)}
    first.pop(None, None)
    return [(first[mark], run) for run in _finished(other) if (mark := run.replicate) in first]


def compare_seeds(baseline: Group, others: Mapping[str, Group], metrics: Mapping[str, str | None]) -> list[SeedTest]:
    """Test every group against the baseline.

    Args:
        baseline: The baseline.
        others: The other groups by label.
        metrics: Names of metrics, with `min` or `max` for which values are better.
    """
    entries = list[SeedTest]()
    for name, mode in metrics.items():
        tests = {label: _mean_test(baseline, other, name) for label, other in others.items()}
        adjusted = holm([test.t if test is not None else None for test in tests.values()])
        for (label, test), p in zip(tests.items(), adjusted):
            same = _replicates(baseline, name) == _replicates(others[label], name)
            verdict = _verdict(test, p, mode)
            needed = runs_needed(test, level=LEVEL / len(tests)) if test and verdict in UNDECIDED else None
            entries.append(SeedTest(label, name, test, p, verdict, same, needed))
    return entries


def _finished(group: Group) -> list[RunRecord]:
    return [run for run in group.runs if run.status == "finished"]


def _replicates(group: Group, metric: str) -> set[tuple[int, ...] | None]:
    return {run.replicate for run in _finished(group) if metric in run.values}


def _mean_test(baseline: Group, other: Group, metric: str) -> MeanTest | None:
    """Pair the seeds of both; where these are too few, and each has enough, compare all runs without pairing them."""
    own, theirs = ([run for run in _finished(group) if metric in run.values] for group in (baseline, other))
    if not own or not theirs:
        return None
    first, second = ([run.values[metric] for run in runs] for runs in (own, theirs))
    step = resolution([*first, *second], _rows(own[0], metric))
    overlap = max(_overlap(runs, metric) for runs in (own, theirs))
    both = [(a, b) for a, b in pair_runs(baseline, other) if metric in a.values and metric in b.values]
    if len(both) < LEAST_SEEDS <= min(len(first), len(second)) or not both:
        return unpaired(first, second, step=step, overlap=overlap)
    return paired([b.values[metric] - a.values[metric] for a, b in both], step=step, overlap=overlap)


def _rows(run: RunRecord, metric: str) -> int | None:
    """Return the number of rows that a metric counts; None where it counts none, or that is not known."""
    split, _, name = metric.partition("/")
    target = as_dict(as_dict(as_dict(run.part("metrics")).get(split)).get(name)).get("_target_")
    if split not in _SPLITS or not isinstance(target, str) or not target.startswith(_COUNTING):
        return None
    try:
        with (run.folder / run_files.ROWS).open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return int((kept["split"] == _SPLITS.index(split)).sum()) or None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _overlap(runs: Sequence[RunRecord], metric: str) -> float:
    """Return measured rows over training rows where runs differ in their split; 0 where all have the same."""
    marks = {run.replicate for run in runs}
    return split_overlap(runs[0].keys, metric) if len({mark[1:] for mark in marks if mark}) > 1 else 0.0


def split_overlap(keys: Mapping[str, object], metric: str) -> float:
    """Return measured rows over training rows.

    Args:
        keys: A configuration by dotted keys.
        metric: What is measured, such as `val/accuracy`.
    """
    val, test = (as_number(keys.get(f"data.split.{name}")) or 0.0 for name in ("val", "test"))
    if keys.get("data.split.by") in FOLDS:
        test = 1 / max(2.0, as_number(keys.get("data.split.folds")) or 2.0)
    train = max(1 - val - test, 0.01)
    return (val if metric.startswith("val/") else test) / train


def _verdict(test: MeanTest | None, p_holm: float | None, mode: str | None) -> str:
    if test is None:
        return "no finished run"
    if p_holm is None:
        return UNDECIDED[0]
    if test.equal:
        return "no difference"
    if p_holm >= LEVEL:
        return UNDECIDED[1]
    if mode is None:
        return "higher" if test.mean > 0 else "lower"
    return "better" if (test.mean > 0) == (mode == "max") else "worse"


_SMALLEST = 1e-12
"""Probability below which a log loss grows no more."""
_OF_CLASS = "p({})"


@dataclass(frozen=True)
class RowPredictions:
    """What a run predicts of the rows of a split, by the `predictions-<split>.csv` of `lightkit predict`.

    Attributes:
        folder: The run's.
        rows: Rows of the data set, in order.
        targets: What is to be predicted, as it is written.
        losses: Of each row, by the name of the loss: `error` and `log_loss` of classes, `error` of labels,
            `squared_error` of numbers.
        right: Whether each row is right, `(N,)`; None where there is no right and wrong.
    """

    folder: Path
    rows: tuple[int, ...]
    targets: tuple[str, ...]
    losses: Mapping[str, NDArray[np.float64]]
    right: NDArray[np.bool_] | None


@dataclass(frozen=True)
class SeedTable:
    """McNemar's test of two runs with the same seed; `p_holm` is over all tables of a comparison."""

    label: str
    seed: int | None
    test: McNemar
    p_holm: float


@dataclass(frozen=True)
class RowTest:
    """The mean difference of a loss over the rows, averaged over seeds; `p_holm` is over the groups."""

    label: str
    loss: str
    seeds: int
    test: Bootstrap
    p_holm: float


def predictions_file(folder: Path, split: str) -> Path:
    """Return the file with what a run predicts of a split."""
    return folder / run_files.PREDICTIONS.format(split=split)


def is_current(folder: Path, split: str) -> bool:
    """Tell whether a run's predictions are there, and not from before its end."""
    try:
        written = predictions_file(folder, split).stat().st_mtime_ns
        return written >= (folder / run_files.RESULT).stat().st_mtime_ns
    except OSError:
        return False


def read_predictions(folder: Path, split: str) -> RowPredictions:
    """Read what a run predicts of a split.

    Raises:
        UserError: There is nothing, or nothing that losses can be computed from.
    """
    path = predictions_file(folder, split)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = sorted(read_csv(file), key=lambda row: int(row["row"]))
        losses = [_losses_of(row) for row in table]
        names = list(losses[0])
        by_loss = {name: np.array([row[name] for row in losses]) for name in names}
        right = by_loss["error"] == 0 if names[0] == "error" else None
        return RowPredictions(
            folder, tuple(int(row["row"]) for row in table), tuple(row["target"] for row in table), by_loss, right
        )
    except OSError as error:
        fix = f"lightkit predict {folder} --split {split}"
        raise UserError(f"no predictions: {error.strerror}", key=str(path), fix=fix, family="file") from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        what = "no table of predictions of classes, labels or numbers"
        raise UserError(what, key=str(path), fix=f"lightkit predict {folder}", family="file") from error


def _losses_of(row: Mapping[str, str]) -> dict[str, float]:
    """Return the losses of a row.

    Raises:
        ValueError: It is none that losses can be computed from; KeyError where a column is missing.
    """
    target, prediction = row["target"], row["prediction"]
    if "p" in row:
        p = float(row["p"]) if float(target) > 0.5 else 1 - float(row["p"])
        return {"error": float(float(target) != float(prediction)), "log_loss": -math.log(max(p, _SMALLEST))}
    if _OF_CLASS.format(target) in row:
        p = float(row[_OF_CLASS.format(target)])
        return {"error": float(target != prediction), "log_loss": -math.log(max(p, _SMALLEST))}
    wanted, made = np.ravel(json.loads(target)), np.ravel(json.loads(prediction))
    if wanted.shape != made.shape:
        raise ValueError("a prediction of another shape than its target")
    if any(name.startswith("p(") for name in row):
        return {"error": float(np.mean(wanted != made))}
    return {"squared_error": float(np.mean((wanted.astype(float) - made.astype(float)) ** 2))}


def check_alike(first: RunRecord, other: RunRecord, split: str) -> None:
    """Refuse two runs whose rows cannot be compared.

    Raises:
        UserError: They are of other data, or nobody knows of which.
    """
    if first.data and first.data == other.data:
        return
    raise UserError(
        "rows of different data cannot be compared",
        key=str(other.folder),
        expected=f"fingerprint {first.data or '(unknown)'} of {first.folder}",
        received=other.data or "(unknown)",
        fix=f"leave --rows {split} out, or compare runs of the same data",
    )


def _check_rows(first: RowPredictions, other: RowPredictions, split: str) -> None:
    """Refuse predictions of other rows or targets.

    Raises:
        UserError: They differ.
    """
    if first.rows == other.rows and first.targets == other.targets and list(first.losses) == list(other.losses):
        return
    what = "other rows" if first.rows != other.rows else "other targets"
    apart = len({*first.rows} ^ {*other.rows}) or sum(map(str.__ne__, first.targets, other.targets))
    raise UserError(
        f"{what} than the baseline in split {split}: {apart} differ",
        key=str(other.folder),
        expected=f"the {len(first.rows)} rows of {first.folder}",
        fix="compare runs whose rows were split alike (data.split, data.split.seed)",
        family="split",
    )


def compare_rows(
    pairs: Mapping[str, Sequence[tuple[RunRecord, RunRecord]]], split: str
) -> tuple[list[SeedTable], list[RowTest]]:
    """Compare groups with the baseline, row by row.

    Args:
        pairs: Of each group by its label, the runs of the baseline and its own with the same seed.
        split: The split.

    Returns:
        McNemar's test for each pair, where there is right and wrong, and the bootstrap of each loss for each group.

    Raises:
        UserError: Predictions are missing, or are not of the same rows.
    """
    both = [(label, first, other) for label, each in pairs.items() for first, other in each]
    for _, first, other in both:
        check_alike(first, other, split)
    folders = dict.fromkeys(run.folder for _, *runs in both for run in runs)
    known = {folder: read_predictions(folder, split) for folder in folders}
    tables = list[tuple[str, int | None, McNemar]]()
    differences = defaultdict[tuple[str, str], defaultdict[int, list[float]]](lambda: defaultdict(list))
    for label, first, other in both:
        one, two = known[first.folder], known[other.folder]
        _check_rows(one, two, split)
        if one.right is not None and two.right is not None:
            tables.append((label, other.seed, mcnemar(one.right, two.right)))
        for name in one.losses:
            for row, difference in zip(one.rows, two.losses[name] - one.losses[name]):
                differences[label, name][row].append(float(difference))
    tests = list[tuple[str, str, int, Bootstrap]]()
    for (label, name), by_row in differences.items():
        means = np.array([sum(values) / len(values) for _, values in sorted(by_row.items())])
        tests.append((label, name, len(pairs[label]), bootstrap(means)))
    return _adjusted(tables, tests)


def _adjusted(
    tables: Sequence[tuple[str, int | None, McNemar]], tests: Sequence[tuple[str, str, int, Bootstrap]]
) -> tuple[list[SeedTable], list[RowTest]]:
    """Add what Holm's method makes of the p-values."""
    of_tables = holm([entry[2].p for entry in tables])
    of_tests = dict[tuple[str, str], float | None]()
    for loss in dict.fromkeys(name for _, name, *_ in tests):
        same = [entry for entry in tests if entry[1] == loss]
        of_tests |= zip([(label, loss) for label, *_ in same], holm([entry[3].p for entry in same]))
    return (
        [SeedTable(label, seed, test, p or 0.0) for (label, seed, test), p in zip(tables, of_tables)],
        [RowTest(label, loss, n, test, of_tests[label, loss] or 0.0) for label, loss, n, test in tests],
    )
