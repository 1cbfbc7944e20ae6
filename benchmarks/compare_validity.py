"""How often `lightkit compare` calls equal models different, and how often it finds a difference that is there.

    python -m benchmarks.compare_validity [--comparisons 2000] [--seed 0]

Every comparison is of two made-up configurations, whose runs have an accuracy on the same test rows, with all its ties
and the rounding of float32. Rows are easy or hard (right in 90 % on average). In `unpaired` no seed is in both. It ends
with status 1 where more than 6 % of equal models are called different (5 % is what p < 0.05 allows, 1 % the error of a
simulation), or fewer than 70 % of differences of three standard deviations are found with five seeds or more.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightkit.common import run_files
from lightkit.compare.grouping import Group
from lightkit.compare.seeds import compare_seeds
from lightkit.runs.record import RunRecord, Section

METRIC = "test/accuracy"
SEEDS, ROWS = (2, 3, 5, 10), (18, 180, 1800)
MOST_FALSE, LEAST_FOUND = 0.06, 0.7
EASY = (1.8, 0.2)
"""Shape of the beta distribution of how often a row is right."""
_CONFIG = Section({"metrics": {"test": {"accuracy": {"_target_": "torchmetrics.classification.MulticlassAccuracy"}}}})


class Shares(NamedTuple):
    """Shares of comparisons in which something was called better or worse."""

    rows: int
    seeds: int
    paired: float
    unknown: float
    """The same where nobody knows the number of rows."""
    unpaired: float
    found: float
    """Of models that differ by three standard deviations of their seeds."""


def keep_rows(folder: Path, rows: int) -> None:
    """Write what a run keeps of its rows: all are test rows."""
    folder.mkdir()
    np.savez(folder / run_files.ROWS, split=np.full(rows, 2, np.uint8))


def group_of(folder: Path, values: Sequence[float], first_seed: int = 0) -> Group:
    """Return finished runs with these accuracies and rising seeds."""
    runs = list[RunRecord]()
    for seed, value in enumerate(values, first_seed):
        result = {"status": "finished", "test": {METRIC: float(value)}}
        run = RunRecord(folder, (_CONFIG, Section({"seed": seed})), result, {}, (), "", "")
        run.__dict__["status"] = "finished"  # nobody has to ask the kernel
        runs.append(run)
    return Group({}, tuple(runs))


def accuracies(draw: np.random.Generator, rows: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return accuracies of models that are alike but for their luck, on the same rows."""
    chance = draw.beta(*EASY, size=rows)
    right = np.array([(draw.random(rows) < chance).mean() for _ in range(int(np.prod(shape)))])
    return right.reshape(shape).astype(np.float32)


def is_called(baseline: Group, other: Group) -> bool:
    """Tell whether one of two groups is called better."""
    (test,) = compare_seeds(baseline, {"other": other}, {METRIC: "max"})
    return test.verdict in ("better", "worse")


def measure(folder: Path, rows: int, seeds: int, comparisons: int, seed: int) -> Shares:
    """Compare as often as asked."""
    draw = np.random.default_rng([seed, rows, seeds])
    values = accuracies(draw, rows, (comparisons, 2, seeds))
    far = 3 * float(values.std(2, ddof=1).mean()) if seeds > 1 else 0.0
    far = max(1, round(far * rows)) / rows  # whole rows, as an accuracy has them
    unknown, called = folder / "unknown", np.zeros(4)
    for first, second in values:
        known = group_of(folder, first)
        called += (
            is_called(known, group_of(folder, second)),
            is_called(group_of(unknown, first), group_of(unknown, second)),
            is_called(known, group_of(folder, second, first_seed=100)),
            is_called(known, group_of(folder, second - np.float32(far))),
        )
    return Shares(rows, seeds, *(called / comparisons).tolist())


def table(comparisons: int, seed: int) -> list[Shares]:
    """Measure every number of rows with every number of seeds."""
    found = list[Shares]()
    with tempfile.TemporaryDirectory() as name:
        for rows in ROWS:
            folder = Path(name, str(rows))
            keep_rows(folder, rows)
            found += [measure(folder, rows, seeds, comparisons, seed) for seeds in SEEDS]
    return found


def main(arguments: Sequence[str] | None = None) -> bool:
    """Simulate, print and judge."""
    parser = argparse.ArgumentParser(description="how often compare is wrong")
    parser.add_argument("--comparisons", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    found = table(chosen.comparisons, chosen.seed)
    print(f"called different, of {chosen.comparisons:,} comparisons each\n")
    print("rows  seeds    equal  equal, rows unknown  equal, unpaired  3 deviations apart")
    for one in found:
        print(
            f"{one.rows:>4}  {one.seeds:>5}  {one.paired:7.1%}  {one.unknown:19.1%}  {one.unpaired:15.1%}"
            f"  {one.found:18.1%}"
        )
    valid = all(share <= MOST_FALSE for one in found for share in (one.paired, one.unknown, one.unpaired))
    strong = all(one.found >= LEAST_FOUND for one in found if one.seeds >= 5)
    print(f"\nequal models: at most {MOST_FALSE:.0%}: {'holds' if valid else 'MISSED'}")
    print(f"3 deviations apart, five seeds or more: at least {LEAST_FOUND:.0%}: {'holds' if strong else 'MISSED'}")
    return valid and strong


if __name__ == "__main__":
    raise SystemExit(not main())
