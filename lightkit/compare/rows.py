"""What runs predict of the same rows, compared row by row: who is right where, and by how much the losses differ.

The rows are those of `predictions-<split>.csv`, which `lightkit predict` writes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightkit.common import run_files
from lightkit.common.csv_lines import read_csv
from lightkit.common.errors import UserError
from lightkit.compare.statistics import Bootstrap, McNemar, bootstrap, holm, mcnemar
from lightkit.runs.record import RunRecord

_SMALLEST = 1e-12
"""Probability below which a log loss grows no more."""
_OF_CLASS = "p({})"


@dataclass(frozen=True)
class RowPredictions:
    """What a run predicts of the rows of a split.

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
        losses = [_losses(row) for row in table]
        names = list(losses[0])
        found = {name: np.array([row[name] for row in losses]) for name in names}
        right = found["error"] == 0 if names[0] == "error" else None
        return RowPredictions(
            folder, tuple(int(row["row"]) for row in table), tuple(row["target"] for row in table), found, right
        )
    except OSError as error:
        fix = f"lightkit predict {folder} --split {split}"
        raise UserError(f"no predictions: {error.strerror}", key=str(path), fix=fix, family="file") from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        what = "no table of predictions of classes, labels or numbers"
        raise UserError(what, key=str(path), fix=f"lightkit predict {folder}", family="file") from error


def _losses(row: Mapping[str, str]) -> dict[str, float]:
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
        adjusted = holm([entry[3].p for entry in same])
        of_tests |= {(entry[0], loss): value for entry, value in zip(same, adjusted)}
    return (
        [SeedTable(label, seed, test, p or 0.0) for (label, seed, test), p in zip(tables, of_tables)],
        [RowTest(label, loss, n, test, of_tests[label, loss] or 0.0) for label, loss, n, test in tests],
    )
