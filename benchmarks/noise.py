"""How often a path of lightkit reports more than chance where labels have nothing to do with inputs.

    python -m benchmarks.noise [--repetitions 50] [--seed 0] [PATH ...]

Each repetition draws 120 rows of five features, and deals out two classes of 60 rows at random: of unequal classes the
larger one is right in more than half of the rows, which stratified folds tell. A report is too good where 0.5 lies
below its 95 % interval: that of the cross-validation itself, elsewhere that of a share of so many rows (Clopper and
Pearson). It ends with status 1 where a path reports so more often than 5 % allows (0.99 quantile of the binomial
distribution).
"""

from __future__ import annotations

import argparse
import io
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from lightkit import Runner, compose
from lightkit.compare.comparison import build_comparison
from lightkit.runner.calibrating import calibrate
from lightkit.runs.catalog import folds_of
from lightkit.runs.index import read_record

ROWS, CHANCE, ALLOWED = 120, 0.5, 0.05
METRIC = "test/accuracy"
_SETTINGS = (
    *("data=csv", "data.dataset.target=y", "data.dataset.task=multiclass", "data.split.val=0.2", "data.split.test=0.3"),
    *("model.hidden=[8]", "optim.lr=0.03", "data.batch_size=32", "trainer.epochs=6", "scheduler.warmup_epochs=0"),
    *("logger.console.style=quiet", "logger.tensorboard.enabled=false", "data.leak_check=false", "metrics.figures=[]"),
    *("~metrics.val.f1", *(f"~metrics.test.{name}" for name in ("f1", "precision", "recall", "auroc"))),
)


class Report(NamedTuple):
    """What a path says of one draw of labels."""

    value: float
    """The accuracy."""
    low: float
    """Lower end of its 95 % interval."""


class Tally(NamedTuple):
    """What a path has said of all draws."""

    name: str
    reports: list[Report]

    @property
    def too_good(self) -> int:
        """Reports whose interval lies above chance."""
        return sum(report.low > CHANCE for report in self.reports)

    @property
    def most(self) -> int:
        """So many are allowed."""
        return int(stats.binom.ppf(0.99, len(self.reports), ALLOWED))


def share(value: float, rows: int) -> Report:
    """Return an accuracy with the lower end of its interval, of rows that are independent."""
    right = round(value * rows)
    return Report(value, float(stats.beta.ppf(0.025, right, rows - right + 1)) if right else 0.0)


def draw_rows(path: Path, seed: int) -> None:
    """Write a table whose labels follow from nothing."""
    draw = np.random.default_rng(seed)
    table = np.column_stack([draw.normal(size=(ROWS, 5)), draw.permutation(ROWS) % 2])
    np.savetxt(path, table, "%.6g", ",", header="a,b,c,d,e,y", comments="")


def train(folder: Path, *overrides: str) -> dict[str, Any]:
    """Train on the table beside a folder, in this process."""
    words = [*_SETTINGS, f"data.dataset.path={folder.parent / 'noise.csv'}", *overrides]
    with redirect_stdout(io.StringIO()):
        return Runner(compose(words).cfg, folder).run()


def cross_validation(place: Path) -> Report:
    """Report the accuracy over all rows and its interval, as the run does."""
    result = train(place / "cv", "cv=5")
    return Report(result["test"][METRIC], result["folds"]["intervals"][METRIC][0])


def nested(place: Path) -> Report:
    """Report what the best of three in each fold by validation reach on the outer rows, as `lightkit compare` does."""
    rates = ("0.003", "0.03", "0.3")
    for rate in rates:
        train(place / rate, "cv=5", f"optim.lr={rate}")
    made = build_comparison([read_record(fold) for rate in rates for fold in folds_of(place / rate)])
    found = next(match for note in made.notes if (match := re.match(r"nested: .* is (\S+) ±", note)))
    return share(float(found[1]), ROWS)


def stacking(place: Path) -> Report:
    """Report the test accuracy of a stack, or of what is used in its place."""
    few = ("ensemble.folds=2", "ensemble.size=2", "ensemble.refit=false", "ensemble.meta.trainer.steps=50")
    return share(train(place / "stack", "ensemble=stacking", *few)["test"][METRIC], tested())


def greedy(place: Path) -> Report:
    """Report the test accuracy of members that are weighed by validation."""
    return share(train(place / "greedy", "ensemble=greedy", "ensemble.size=4")["test"][METRIC], tested())


def early_stopping(place: Path) -> Report:
    """Report the test accuracy of the weights with the best validation."""
    best = ("trainer.test=best", "trainer.early_stopping.patience=3")
    return share(train(place / "best", *best)["test"][METRIC], tested())


def calibrated(place: Path) -> Report:
    """Report the test accuracy of such weights after an isotonic calibration by validation rows."""
    folder = place / "calibrated"
    train(folder, "trainer.test=best")
    cfg = compose([*_SETTINGS, f"data.dataset.path={place / 'noise.csv'}", "trainer.test=best"]).cfg
    return share(calibrate(cfg, folder, method="isotonic").test["after"]["accuracy"], tested())


def tested() -> int:
    """Return how many test rows there are."""
    return round(0.3 * ROWS)


PATHS: dict[str, Callable[[Path], Report]] = {
    "cv": cross_validation,
    "nested": nested,
    "stacking": stacking,
    "greedy": greedy,
    "early stopping": early_stopping,
    "calibrate": calibrated,
}


def repeat(name: str, repetitions: int, seed: int) -> Tally:
    """Let a path report as often as asked, each time of other rows."""
    reports = list[Report]()
    for number in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            draw_rows(Path(folder, "noise.csv"), seed + number)
            reports.append(PATHS[name](Path(folder)))
    return Tally(name, reports)


def main(arguments: Sequence[str] | None = None) -> bool:
    """Repeat, print and judge."""
    parser = argparse.ArgumentParser(description="what is reported of labels that mean nothing")
    parser.add_argument("paths", nargs="*", default=[*PATHS], metavar="PATH")
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    print(f"{'path':<16}{'n':>5}{'mean':>8}{'best':>8}{'too good':>10}{'allowed':>9}")
    holds = True
    for name in chosen.paths:
        found = repeat(name, chosen.repetitions, chosen.seed)
        values, holds = [report.value for report in found.reports], holds and found.too_good <= found.most
        told = f"{fmean(values):>8.3f}{max(values):>8.3f}{found.too_good:>10}{found.most:>9}"
        print(f"{name:<16}{len(values):>5}{told}", flush=True)
    print("\nno path reports more than chance too often" if holds else "\nMISSED: a path reports more than chance")
    return holds


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(not main())
