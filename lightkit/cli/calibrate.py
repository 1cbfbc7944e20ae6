"""`lightkit calibrate`: probabilities that can be believed, and sets or intervals that cover, for a finished run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import number, report, table
from lightkit.common import run_files
from lightkit.common.collecting import importing
from lightkit.common.errors import UserError
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run

if TYPE_CHECKING:
    from lightkit.runner.calibrating import Calibrated


def calibrate(args: list[str]) -> int:
    """Fit a calibration to rows of a run, keep it in the folder of the run, and say what it is worth."""
    options = Parser("calibrate", "run", "overrides*", method="temperature", split="val").read(args)
    coverage = _share(options.coverage) if options.coverage else None
    folder = find_run(options.run, project())
    cfg = read_run(folder, options.overrides).cfg
    with importing():  # torch takes seconds, and a wrong configuration is told before
        from lightkit.runner.calibrate import goal_of
        from lightkit.runner.calibrating import calibrate as fit
    goal = goal_of(options.threshold, options.cost)
    found = fit(cfg, folder, method=options.method, split=options.split, coverage=coverage, goal=goal)
    return report(options, asdict(found), lambda: [*_lines(found), f"\nwritten to {folder / run_files.CALIBRATION}"])


def _share(text: str) -> float:
    """Read the share that is to be covered.

    Raises:
        UserError: It is none.
    """
    with suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise UserError("not a share of rows", key="--coverage", received=text, expected="a number between 0 and 1")


def _lines(found: Calibrated) -> Iterator[str]:
    """Yield what was measured before and after."""
    rows = [
        [name, number(found.before[name]), number(found.after[name])]
        + [number(found.test[when][name]) for when in ("before", "after") if found.test]
        for name in found.before
    ]
    heads = ["measure", f"{found.fitted_on} before", "after", *(["test before", "after"] if found.test else [])]
    if rows:
        yield table(heads, rows, right=range(1, len(heads)))
        yield f"{found.fitted_on}: {found.rows} rows, each corrected by what was fitted to the others ({found.method})"
        if found.test:
            yield f"{found.fitted_on} rows may have chosen the weights of the run, too; test rows had no part in this"
    if found.coverage is not None:
        told = "everything, as there are too few rows" if found.quantile == float("inf") else "as asked"
        yield f"coverage {found.coverage:g} of new rows by {found.rows} rows: {told}"
        if found.covered is not None and found.size is not None:
            yield f"of the test rows {found.covered:.1%} are covered, with a mean size of {number(found.size)}"
    if found.reached is not None:
        told = ", ".join(f"{name} above {value:.4g}" for name, value in found.thresholds.items())
        yield f"decided for {found.goal}: {told}"
        yield f"the {found.fitted_on} rows, which chose this, reach {number(found.reached)}: too good for other rows"
