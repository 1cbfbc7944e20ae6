"""How often `lightkit compare` calls equal models different, and how often it finds a difference that is there.

    python -m benchmarks.compare_validity [--comparisons 2000] [--seed 0]

Every comparison is of made-up configurations that are equal but for their luck:

- `paired`: two, whose runs have an accuracy on the same test rows, with all its ties and the rounding of float32. Rows
  are easy or hard (right in 90 % on average). `unknown`: nobody knows the number of rows. `unpaired`: no seed is in
  both. `loss`: means of losses in float32 in place of accuracies. `Holm`: four configurations against one baseline.
- `folds`: two classifiers (nearest centroid) that learn from features of the same worth, over as many folds as there
  are seeds, with Nadeau's and Bengio's correction.
- `McNemar`, `rows`, `interval`: two over the same test rows: McNemar's test of any seed after Holm, the p of the mean
  difference over the rows, and whether its bootstrap interval leaves out 0.

It ends with status 1 where more than 6 % of equal models are called different (5 % is what p < 0.05 allows, 1 % the
error of a simulation), or fewer than 70 % of differences of three standard deviations are found with 5 or 10 seeds.
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
from lightkit.compare.statistics import LEVEL, bootstrap, holm, mcnemar
from lightkit.runs.record import RunRecord, Section

METRIC, LOSS = "test/accuracy", "test/loss"
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
    unpaired: float
    loss: float
    holm: float
    folds: float
    mcnemar: float
    by_row: float
    interval: float
    found: float
    """Of models that differ by three standard deviations of their seeds."""
    found_folds: float
    """The same over folds."""
    found_by_row: float
    """Of models that differ by 15 points of accuracy, by the test over rows."""

    @property
    def equal(self) -> tuple[float, ...]:
        """All shares of equal models."""
        return self[2:-3]


def keep_rows(folder: Path, rows: int) -> None:
    """Write what a run keeps of its rows: all are test rows."""
    folder.mkdir()
    np.savez(folder / run_files.ROWS, split=np.full(rows, 2, np.uint8))


def group_of(
    folder: Path, values: Sequence[float], first_seed: int = 0, *, metric: str = METRIC, folds: int = 0
) -> Group:
    """Return finished runs with these values and rising seeds, or of rising folds."""
    runs = list[RunRecord]()
    for number, value in enumerate(values, first_seed):
        result = {"status": "finished", "test": {metric: float(value)}}
        split = {"by": "fold", "folds": folds, "fold": number, "val": 0.0}
        own = {"seed": 0, "data": {"split": split}} if folds else {"seed": number}
        run = RunRecord(folder, (_CONFIG, Section(own)), result, {}, (), "", "")
        run.__dict__["status"] = "finished"  # nobody has to ask the kernel
        runs.append(run)
    return Group({}, tuple(runs))


def accuracies(draw: np.random.Generator, rows: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return accuracies of models that are alike but for their luck, on the same rows."""
    chance = draw.beta(*EASY, size=rows)
    right = np.array([(draw.random(rows) < chance).mean() for _ in range(int(np.prod(shape)))])
    return right.reshape(shape).astype(np.float32)


def fold_accuracies(draw: np.random.Generator, rows: int, folds: int, comparisons: int) -> NDArray[np.float32]:
    """Return accuracies `(comparisons, 2, folds)` of classifiers that learn from three features each, all alike."""
    number = np.arange(rows)
    part, sign = number % folds, np.where(number // folds % 2, 1.0, -1.0).astype(np.float32)
    x = draw.standard_normal((comparisons, 2, rows, 3), dtype=np.float32) + 0.5 * sign[:, None]
    found = np.empty((comparisons, 2, folds), np.float32)
    for fold in range(folds):
        up, down = (x[:, :, (part != fold) & (sign == side)].mean(2, keepdims=True) for side in (1, -1))
        said = ((x[:, :, part == fold] - (up + down) / 2) * (up - down)).sum(3)
        found[:, :, fold] = (said * sign[part == fold] > 0).mean(2, dtype=np.float32)
    return found


def is_called(baseline: Group, *others: Group, metric: str = METRIC) -> bool:
    """Tell whether any of the groups is called better or worse."""
    tests = compare_seeds(baseline, dict(zip("abcd", others)), {metric: "max"})
    return any(test.verdict in ("better", "worse") for test in tests)


def of_rows(draw: np.random.Generator, rows: int, seeds: int) -> tuple[bool, bool, bool, bool]:
    """Compare two models over the same rows: McNemar, the test over rows, its interval; and one that is worse."""
    chance = draw.beta(*EASY, size=rows)
    first, second = draw.random((2, seeds, rows)) < chance
    worse = draw.random((seeds, rows)) < chance - 0.15
    tables = holm([mcnemar(one, other).p for one, other in zip(first, second)])
    test, of_worse = (bootstrap((first.sum(0) - other.sum(0, dtype=float)) / seeds) for other in (second, worse))
    outside = test.low > 0 or test.high < 0
    return min(p or 0.0 for p in tables) < LEVEL, test.p < LEVEL, outside, of_worse.p < LEVEL


def measure(folder: Path, rows: int, seeds: int, comparisons: int, seed: int) -> Shares:
    """Compare as often as asked."""
    draw = np.random.default_rng([seed, rows, seeds])
    values = accuracies(draw, rows, (comparisons, 5, seeds))
    losses = draw.normal(0.3, 0.02, (comparisons, 2, seeds)).astype(np.float32)
    folds = fold_accuracies(draw, rows, seeds, comparisons)
    far = max(1, round(3 * float(values.std(2, ddof=1).mean()) * rows)) / rows  # whole rows, as an accuracy has them
    far_folds = 3 * float(folds.std(2, ddof=1).mean())
    unknown, part = folder / "unknown", folder / f"part-{seeds}"
    keep_rows(part, -(-rows // seeds))
    called = np.zeros(len(Shares._fields) - 2)
    for (first, *others), loss, fold in zip(values, losses, folds):
        known, second = group_of(folder, first), others[0]
        table_p, by_row, interval, found_by_row = of_rows(draw, rows, seeds)
        called += (
            is_called(known, group_of(folder, second)),
            is_called(group_of(unknown, first), group_of(unknown, second)),
            is_called(known, group_of(folder, second, first_seed=100)),
            is_called(*(group_of(folder, one, metric=LOSS) for one in loss), metric=LOSS),
            is_called(known, *(group_of(folder, other) for other in others)),
            is_called(*(group_of(part, one, folds=seeds) for one in fold)),
            table_p,
            by_row,
            interval,
            is_called(known, group_of(folder, second - np.float32(far))),
            is_called(
                group_of(part, fold[0], folds=seeds), group_of(part, fold[1] - np.float32(far_folds), folds=seeds)
            ),
            found_by_row,
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
    heads = ("paired", "unknown", "unpaired", "loss", "Holm", "folds", "McNemar", "rows", "interval")
    heads += ("3 sd apart", "folds, 3 sd", "rows, 15 points")
    print("rows  seeds  " + "  ".join(f"{head:>8}" for head in heads))
    for one in found:
        shares = (f"{share:>{max(8, len(head))}.1%}" for share, head in zip(one[2:], heads))
        print(f"{one.rows:>4}  {one.seeds:>5}  " + "  ".join(shares))
    valid = all(share <= MOST_FALSE for one in found for share in one.equal)
    strong = all(one.found >= LEAST_FOUND for one in found if one.seeds >= 5)
    print(f"\nequal models: at most {MOST_FALSE:.0%}: {'holds' if valid else 'MISSED'}")
    print(f"3 deviations apart, five seeds or more: at least {LEAST_FOUND:.0%}: {'holds' if strong else 'MISSED'}")
    return valid and strong


if __name__ == "__main__":
    raise SystemExit(not main())
