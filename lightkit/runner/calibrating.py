"""The calibration of a finished run: its rows, what is fitted to them, and what that is worth on others."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import build_shared
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.data import DataInfo
from lightkit.ensemble.calibration import reliability
from lightkit.ensemble.combining import as_logits, as_probabilities
from lightkit.ensemble.oof import pooled
from lightkit.loggers.files import write_json
from lightkit.metrics.ensemble_figures import reliability as draw_reliability
from lightkit.runner import calibrate as fitting
from lightkit.runner.calibrate import FEWEST, METHODS, Calibration, Curves, Goal, measures, result_mark, sides
from lightkit.runner.evaluation import check_mean, predict_rows, rows_of
from lightkit.runner.folds import first_fold, fold_predictions, trained_folds
from lightkit.runner.run import Runner
from lightkit.runs.catalog import folds_of

NONE = "none"
_OUT_OF_FOLD = "out of fold"


class HeldOut(NamedTuple):
    """Rows that a model has not learnt from, and what it puts out for them."""

    logits: Tensor
    """`(N, C)`: logits, of regression values in the unit of the data."""
    targets: Tensor
    """`(N,)` classes, or `(N, C)` labels or values."""


@dataclass(frozen=True)
class Calibrated:
    """What a calibration came to.

    Args:
        method: How probabilities are changed; `none` leaves them.
        fitted_on: The rows that decided, in words.
        rows: How many.
        before: Measures of these rows as the model gives them.
        after: The same, each row by what was fitted to others.
        test: Measures of the test rows before and after; empty without such rows.
        coverage: Share of rows that sets or intervals are to cover; None makes none.
        quantile: The largest score in them.
        covered: Share of the test rows that they cover.
        size: Mean number of classes in a set, or mean width of an interval, of the test rows.
        goal: What thresholds were tuned for; None leaves decisions to the likeliest.
        thresholds: The probability from which on there is a label, or the second of two classes, by its name.
        reached: What the rows that decided reach by them, which is too good.
    """

    method: str
    fitted_on: str
    rows: int
    before: dict[str, float]
    after: dict[str, float]
    test: dict[str, dict[str, float]]
    coverage: float | None = None
    quantile: float | None = None
    covered: float | None = None
    size: float | None = None
    goal: str | None = None
    thresholds: dict[str, float] = field(default_factory=dict)
    reached: float | None = None


def calibrate(
    cfg: DictConfig,
    folder: Path,
    *,
    method: str = "temperature",
    split: str = "val",
    coverage: float | None = None,
    goal: Goal | None = None,
) -> Calibrated:
    """Fit what makes the probabilities of a run believable, and what covers the truth; kept in its folder.

    Args:
        cfg: The configuration of the run.
        folder: Its folder. Of a cross-validation all rows are taken, each predicted by the fold that has not seen it.
        method: `temperature`, `vector`, `isotonic` or `none`.
        split: The rows to fit on.
        coverage: Share of rows that sets of classes, or intervals, are to cover; None makes none.
        goal: What the thresholds of decisions are tuned for; None leaves decisions to the likeliest.

    Returns:
        What it came to. `calibration.json` and `figures/calibration` of the folder hold it.

    Raises:
        UserError: The run predicts nothing that has probabilities, or the rows do not suffice.
    """
    info, seen, tested = _rows(cfg, folder, split)
    task, method = info.task, NONE if info.task == "regression" else method
    _check(method, task, coverage, goal, len(seen.targets), split)
    fitted = None if method == NONE else fitting.fit_curves(method, seen.logits, seen.targets, task)
    curves = None if fitted is None else Curves(task, **fitted)
    fair = seen.logits if curves is None else fitting.crossed(method, seen.logits, seen.targets, task)
    scores = fair if task == "regression" else as_probabilities(fair, task)
    quantile = None if coverage is None else fitting.conformal_quantile(scores, seen.targets, task, coverage)
    found = Calibration(task, curves, coverage, math.inf if quantile is None else quantile)
    tuned = _tuned(found, seen, info, goal) if goal else {}
    covered, size = (None, None) if coverage is None or tested is None else _covered(found, tested)
    where, count = _OUT_OF_FOLD if folds_of(folder) else split, len(seen.targets)
    measured = _measured(found, seen, fair, tested, goal)
    told = Calibrated(method, where, count, *measured, coverage, quantile, covered, size, **tuned)
    _draw(folder, info, (seen.logits, fair), seen.targets)
    finite = quantile if quantile is not None and math.isfinite(quantile) else None
    kept = {**asdict(told), "quantile": finite, "task": task, "result": result_mark(folder), "curves": fitted}
    write_json(folder / run_files.CALIBRATION, kept)
    return told


def _tuned(found: Calibration, seen: HeldOut, info: DataInfo, goal: Goal) -> dict[str, Any]:
    """Tune the thresholds of a calibration, and return what is told of them.

    Raises:
        UserError: There are no two sides to be parted.
    """
    task, chance = info.task, as_probabilities(found.outputs(seen.logits), info.task)
    is_value = task == "regression" or (task == "multiclass" and chance.shape[1] > 2)
    chance, truth = (chance, chance > math.inf) if is_value else sides(chance, seen.targets, task)
    if bool((truth == truth[:1]).all(0).any()):
        what, expected = "a threshold parts two classes, or the rows with a label from those without", "rows of both"
        raise UserError(what, key="--threshold", expected=expected, received=task, family="data-setting")
    found.thresholds = goal.thresholds(chance, truth)
    names = (info.class_names or tuple(map(str, range(max(truth.shape[1], 2)))))[-truth.shape[1] :]
    reached = goal.reached(chance.double() > torch.tensor(found.thresholds).double(), truth)
    return {"goal": goal.name, "thresholds": dict(zip(names, found.thresholds)), "reached": reached}


def _check(method: str, task: str, coverage: float | None, goal: Goal | None, rows: int, split: str) -> None:
    """Refuse what cannot be fitted, and what would change nothing.

    Raises:
        UserError: It is such a calibration.
    """
    if method not in (*METHODS, NONE):
        raise UserError("no such method", key="--method", received=method, choices=(*METHODS, NONE))
    if method == NONE and coverage is None and goal is None:
        fix = "--coverage 0.9" if task == "regression" else "--coverage 0.9, or another --method"
        what = "nothing would be done"
        raise UserError(what, key="--method", received=f"{method}, of {task}", fix=fix, family="contradiction")
    if coverage is not None and task not in ("multiclass", "regression"):
        what, expected = "sets are made of classes, and intervals of values", "multiclass or regression"
        raise UserError(what, key="--coverage", expected=expected, received=task, family="data-setting")
    if rows < FEWEST:
        what, fix = "too few rows to fit anything to", "another --split, or a larger data.split.val"
        expected = f"{FEWEST} rows"
        raise UserError(what, key=f"--split {split}", expected=expected, received=rows, fix=fix, family="split")


def _measured(
    found: Calibration, seen: HeldOut, fair: Tensor, tested: HeldOut | None, goal: Goal | None
) -> tuple[dict[str, float], dict[str, float], dict[str, dict[str, float]]]:
    """Return the measures of the rows of the fit before and after, and those of the test rows; of values none."""
    task = found.task
    if task == "regression":
        return {}, {}, {}
    decided = (
        None if goal is None else fitting.crossed_decisions(goal, as_probabilities(fair, task), seen.targets, task)
    )
    before = measures(seen.logits, seen.targets, task, None, goal)
    after = measures(fair, seen.targets, task, decided, goal)
    if tested is None:
        return before, after, {}
    logits = found.outputs(tested.logits)
    of_test = measures(logits, tested.targets, task, found.decided(as_probabilities(logits, task), task), goal)
    return before, after, {"before": measures(tested.logits, tested.targets, task, None, goal), "after": of_test}


def _rows(cfg: DictConfig, folder: Path, split: str) -> tuple[DataInfo, HeldOut, HeldOut | None]:
    """Return facts about the data, the rows to fit on, and test rows; None where these are the same."""
    if folds_of(folder):
        shared = build_shared(first_fold(cfg), folder, trains=False)
        with closing(shared.data):
            info = shared.data.info
        check_mean(info, "lightkit calibrate")
        found = pooled(fold_predictions(trained_folds(cfg, folder), cfg.cv.folds))
        scale = info.target_scale if info.task == "regression" else 1.0
        return info, HeldOut(as_logits(found.predictions, info.task) * scale, found.targets * scale), None
    if split == "train":
        what, fix = "the run has learnt from these rows, and is too sure of them", "--split val, or --split test"
        raise UserError(what, key="--split", received=split, fix=fix, family="split")
    with Runner(cfg, folder).trained() as learner:
        info = learner.data.info
        check_mean(info, "lightkit calibrate")
        seen = [split, *(["test"] if learner.data.test is not None and split != "test" else [])]
        parts = [_seen(predict_rows(learner, rows_of(learner.data, one), info)[0].tensors(), info) for one in seen]
    return info, parts[0], parts[1] if len(parts) > 1 else None


def _seen(tensors: tuple[Tensor, Tensor], info: DataInfo) -> HeldOut:
    outputs, targets = (info.in_unit(one) for one in tensors)
    return HeldOut(outputs.reshape(len(outputs), -1), targets)


def _covered(found: Calibration, tested: HeldOut) -> tuple[float, float]:
    """Return the share of the test rows that sets or intervals cover, and their mean size."""
    if found.task == "regression":
        inside = (tested.logits - tested.targets.reshape(tested.logits.shape)).abs() <= found.quantile
        return float(inside.all(1).double().mean()), 2 * found.quantile
    chance = as_probabilities(found.outputs(tested.logits), found.task)
    sets = chance >= 1 - found.quantile
    sets[torch.arange(len(sets)), chance.argmax(1)] = True
    right = sets.gather(1, tested.targets.reshape(-1, 1).long())
    return float(right.double().mean()), float(sets.sum(1).double().mean())


def _draw(folder: Path, info: DataInfo, both: tuple[Tensor, Tensor], targets: Tensor) -> None:
    """Draw the reliability diagrams before and after, for the folder of the run."""
    if info.task == "regression":
        return
    place = folder / run_files.FIGURES / "calibration"
    place.mkdir(parents=True, exist_ok=True)
    for name, logits in zip(("before", "after"), both):
        found = reliability(as_probabilities(logits, info.task), targets, info.task)
        bins = (found.edges, found.confidence, found.accuracy, found.counts)
        figure = draw_reliability(*(values.tolist() for values in bins), error=found.error, task=info.task)
        figure.savefig(place / f"{name}.png", dpi=100)
