"""Cross-validation: a run for each fold below that of the whole, and one result over all rows.

The models of the folds are `members/fold-0` and so on, each an ordinary run over splits of its own (Stone 1974,
https://doi.org/10.1111/j.2517-6161.1974.tb00994.x). What counts is measured once over all rows, each of which was
predicted by a model that has not seen it.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import Shared, build_logger, build_shared
from lightkit.assembly.origin import recorded_preprocessing
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.text import counted
from lightkit.config import defaults_of, public, with_values
from lightkit.config.schema.learning import CvConfig
from lightkit.data.targets import AS_IT_IS
from lightkit.ensemble.combining import as_logits
from lightkit.ensemble.methods.base import MemberResult, RunMember
from lightkit.ensemble.oof import TASKS, MemberPredictions, pooled
from lightkit.loggers import Logger
from lightkit.metrics import Figures
from lightkit.runner.calibrate import calibration_of
from lightkit.runner.ensemble.report import SplitMeter, values_of
from lightkit.runner.evaluation import collected, with_names
from lightkit.runner.intervals import over_repeats, row_intervals
from lightkit.runner.messages import introduction
from lightkit.runner.session import Session
from lightkit.runs.reading import read_facts, read_result
from lightkit.trainer.tasks import fit_shape

_LOG = logging.getLogger(__name__)


def first_fold(cfg: DictConfig) -> DictConfig:
    """Return the configuration that the parts of a whole run are built by: that of its first fold, or its own."""
    return with_values(cfg, fold_members(cfg)[0].values) if cfg.cv.folds else cfg


def fold_members(cfg: DictConfig) -> list[RunMember]:
    """Return the models of a cross-validation.

    Args:
        cfg: Its configuration.
    """
    cv, split = cfg.cv, cfg.data.split
    alone = {f"cv.{name}": usual for name, usual in defaults_of(CvConfig).items()}
    alike: dict[str, Any] = {**alone, "data.split.by": "fold", "data.split.folds": cv.folds}
    alike |= {"data.split.groups": cv.groups} if cv.groups is not None else {}
    alike |= {"data.split.by": "time_fold"} if cv.by is not None else {}
    found = list[RunMember]()
    for repeat in range(cv.repeats):
        label = f"{repeat}-" if cv.repeats > 1 else ""
        for fold in range(cv.folds):
            own = {"data.split.seed": split.seed + repeat, "data.split.fold": fold}
            found.append(RunMember(f"{run_files.FOLD}{label}{fold}", {**alike, **own}))
    if cv.refit:
        by = cv.by or (split.by if split.by in ("stratified", "random", "ordered", "time") else "random")
        found.append(RunMember(run_files.REFIT, {**alone, "data.split.by": by, "data.split.test": 0.0}))
    return found


class FoldPlan:
    """Trains a model for each fold, and measures all of them over all rows; see `RunPlan`.

    Args:
        run: The run.
        shared: What its first fold is built with.
    """

    def __init__(self, run: Session, shared: Shared) -> None:
        self.run, self.shared, self.members = run, shared, fold_members(run.cfg)
        if run.cfg.cv.refit and "test" in (getattr(shared.data.source, "splits", None) or {}):
            run.tell("cv.refit: the model for new rows learns from none of the test rows that the data set brings")
        run.members.opening = introduction(run.cfg, run.place.path, shared.data, f"{run.cfg.cv.folds} folds")

    def next(self, done: Sequence[MemberResult]) -> Sequence[RunMember]:
        """See `RunPlan.next`."""
        coming = [] if done else self.members
        self.run.members.expect(member.name for member in coming)
        return coming

    def combine(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        """See `RunPlan.combine`."""
        return self.run.ranks.shared(lambda: self._combined(done))

    def _combined(self, done: Sequence[MemberResult]) -> dict[str, Any]:
        run, last = self.run, self.run.cfg.trainer.test == "last"
        folds = [found for found in done if found.member.name != run_files.REFIT]
        values = {found.member.name: values_of(found, last=last, more=run.cfg.data.more) for found in folds}
        given = [(found.folder, found.predictions) for found in folds]
        predictions = fold_predictions(given, run.cfg.cv.folds) if self.shared.data.info.task in TASKS else []
        if predictions:
            pooled(predictions).write(run.place.path / run_files.PREDICTIONS_HELD_OUT)
        rows = {name: self._rows_of(found) for name, found in zip(values, folds)}
        summary = summarise(values, rows)
        measured = self._measured(predictions, summary)
        logger = build_logger(run.cfg, run.place.path, console=Logger(), strict=False)
        self._show(summary, measured, folds, predictions, logger)
        metrics, reached = run.cfg.metrics, [as_float(found.result.get("objective")) for found in folds]
        known = [value for value in reached if value is not None]
        objective = math.fsum(known) / len(known) if known else None
        return {
            "status": "finished",
            "reason": None,
            "name": run.cfg.name,
            "seconds": round(time.monotonic() - run.began, 3),
            "objective": {"name": metrics.monitor, "mode": metrics.mode, "value": objective},
            "test": {name: found.value for name, found in measured.items()},
            "metrics": {name: found["mean"] for name, found in summary.items()}
            | {name: found.value for name, found in measured.items()},
            "epochs": max((int(found.result.get("epochs") or 0) for found in folds), default=0),
            "steps": max((int(found.result.get("steps") or 0) for found in folds), default=0),
            "folds": {
                "names": [*values],
                "repeats": run.cfg.cv.repeats,
                "values": summary,
                "intervals": {name: list(found.interval) for name, found in measured.items() if found.interval},
            },
        }

    def _rows_of(self, result: MemberResult) -> int:
        """Return how many rows a fold was tested on."""
        if self.shared.data.info.task not in TASKS:
            return 1
        return len(kept(result.folder, result.predictions).of_split("test"))

    def _measured(
        self, predictions: Sequence[MemberPredictions], summary: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Measured]:
        """Return loss and metrics over all rows by name, the mean over the repeats; a loss is that of the folds."""
        means = {name: Measured(found["mean"]) for name, found in summary.items() if name.startswith("test/")}
        if not predictions or not means:
            return means
        meter = plain_meter(self.run.cfg, self.shared)
        values, intervals = over_repeats(meter, predictions), row_intervals(meter, predictions, seed=self.run.cfg.seed)
        known = {name: value for name, value in values.items() if name in means and name != "test/loss"}
        return means | {name: Measured(value, intervals.get(name)) for name, value in known.items()}

    def _show(
        self,
        summary: Mapping[str, Mapping[str, Any]],
        measured: Mapping[str, Measured],
        folds: Sequence[MemberResult],
        predictions: Sequence[MemberPredictions],
        logger: Logger,
    ) -> None:
        """Show what the folds and all rows come to; write values, settings and figures."""
        run, members = self.run, self.run.members
        members.close()
        logger.start(0)
        step = max((int(found.result.get("steps") or 0) for found in folds), default=0)
        logger.scalars({name: found.value for name, found in measured.items()}, step=step, epoch=0)
        logger.hparams(public(run.cfg), run.overrides)
        info = self.shared.data.info
        if predictions:
            figures = Figures(info.task, run.cfg.metrics.figures, info.class_names, info.num_classes)
            figures.update(as_logits(predictions[0].predictions, info.task), predictions[0].targets)
            figures.write(logger, run.place.path / run_files.FIGURES, step=step)
        logger.end("finished")
        rows = counted(len(predictions[0]), "row") if predictions else "no common rows"
        for shown in (members.console, logger):
            shown.table(f"{len(folds)} folds, {rows}", *table_of(summary, measured))
            shown.message(f"folder  {run.place.path}")
        logger.close()


@dataclass(frozen=True)
class Measured:
    """A value over all rows, with the interval that samples of rows give; None where there is none."""

    value: float
    interval: tuple[float, float] | None = None


def as_float(objective: Any) -> float | None:
    """Return the value of an objective of a result; None where there is none."""
    value = objective.get("value") if isinstance(objective, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def summarise(values: Mapping[str, Mapping[str, float]], rows: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return mean, standard deviation and single values of each metric over the folds.

    Args:
        values: Those of each fold.
        rows: Rows that each was tested on; the mean of a test's loss is that over all rows.
    """
    names = dict.fromkeys(name for own in values.values() for name in own)
    found = dict[str, dict[str, Any]]()
    for name in names:
        own = {fold: values[fold][name] for fold in values if name in values[fold]}
        mean, sd = statistics.fmean(own.values()), statistics.stdev(own.values()) if len(own) > 1 else None
        if name == "test/loss":
            mean = math.fsum(value * rows[fold] for fold, value in own.items()) / sum(rows[fold] for fold in own)
        found[name] = {"mean": mean, "sd": sd, "values": [*own.values()]}
    return found


def kept(folder: Path, known: MemberPredictions | None = None) -> MemberPredictions:
    """Return what the model of a fold predicts of rows that it has not seen."""
    return known or MemberPredictions.read(folder / run_files.PREDICTIONS_HELD_OUT)


def as_given(folder: Path, known: MemberPredictions | None = None) -> MemberPredictions:
    """Return the same without the transform of the targets, which each fold has fitted to its own training rows.

    Args:
        folder: That of the fold.
        known: What it predicts, where that need not be read.
    """
    found, fitted = kept(folder, known), recorded_preprocessing(folder)
    if fitted is None or found.task != "regression":
        return found
    targets = fitted.info.undo(found.targets)
    return replace(found, predictions=fitted.info.undo(found.predictions).float(), targets=targets)


def plain_meter(cfg: DictConfig, shared: Shared) -> SplitMeter:
    """Return what measures such predictions by the metrics of the test."""
    info = replace(shared.data.info, transform=AS_IT_IS)
    return SplitMeter(cfg, replace(shared, data=replace(shared.data, info=info)), "test")


def fold_predictions(folds: Sequence[tuple[Path, MemberPredictions | None]], count: int) -> list[MemberPredictions]:
    """Return for each repeat what the folds predict of all rows, each by the model that has not seen it.

    Args:
        folds: Folder of each fold, and what it predicts where that need not be read.
        count: Folds of a repeat.
    """
    own = [as_given(*fold).of_split("test") for fold in folds]
    found = [pooled(own[start : start + count]) for start in range(0, len(own), count)]
    return [replace(one, targets=found[0].targets) for one in found]  # which were turned back, and are rounded


def measure_folds(cfg: DictConfig, folder: Path) -> dict[str, float]:
    """Return loss and metrics of a cross-validation over all rows anew.

    Args:
        cfg: Its configuration.
        folder: Its folder.

    Raises:
        UserError: A fold is not trained yet, or predicts what is not kept.
    """
    shared = _as_it_is(cfg, folder)
    with closing(shared.data):
        folds = trained_folds(cfg, folder)
        found = over_repeats(plain_meter(cfg, shared), fold_predictions(folds, cfg.cv.folds))
        own = [kept(*fold).of_split("test") for fold in folds]
        losses = [_as_learnt(cfg, shared, path)(rows)["test/loss"] * len(rows) for (path, _), rows in zip(folds, own)]
        return found | {"test/loss": math.fsum(losses) / sum(map(len, own))}


def _as_learnt(cfg: DictConfig, shared: Shared, folder: Path) -> SplitMeter:
    """Return what measures the loss of a fold, with the weights of classes that its own training rows gave."""
    fitted, info = recorded_preprocessing(folder), shared.data.info
    info = info if fitted is None else replace(info, class_shares=fitted.info.class_shares)
    return SplitMeter(cfg, replace(shared, data=replace(shared.data, info=info)), "test", only="loss")


def predict_folds(cfg: DictConfig, folder: Path) -> list[dict[str, Any]]:
    """Return what a cross-validation predicts of each row by the model, or the models, that have not seen it.

    Args:
        cfg: Its configuration.
        folder: Its folder.

    Raises:
        UserError: See `measure_folds`.
    """
    shared = _as_it_is(cfg, folder)
    with closing(shared.data):
        found = pooled(fold_predictions(trained_folds(cfg, folder), cfg.cv.folds))
        info = replace(shared.data.info, transform=AS_IT_IS)
        outputs = fit_shape(as_logits(found.predictions, info.task), found.targets)
        rows = collected(outputs, found.targets, info, calibration_of(folder)).rows(found.rows)
        return with_names(rows, shared.data.source)


def _as_it_is(cfg: DictConfig, folder: Path) -> Shared:
    """Build the data as they are now, and say where they are not those that the folds have predicted."""
    shared, before = build_shared(first_fold(cfg), folder, trains=False), read_facts(folder).get("data")
    if before not in (None, shared.data.info.fingerprint):
        _LOG.warning("the data have changed: what counts is what the folds predicted of the rows as they were")
    return shared


def trained_folds(cfg: DictConfig, folder: Path) -> list[tuple[Path, None]]:
    """Return the folders of all folds of a cross-validation.

    Raises:
        UserError: A fold is not trained yet, or predicts what is not kept.
    """
    names = [member.name for member in fold_members(cfg) if member.name != run_files.REFIT]
    folders = [folder / run_files.MEMBERS / name for name in names]
    for one in folders:
        if not (one / run_files.PREDICTIONS_HELD_OUT).is_file():
            trained = read_result(one).get("status") == "finished"
            what = "of these targets no predictions are kept" if trained else "this fold is not trained yet"
            fix = f"lightkit eval {one}" if trained else f"lightkit resume {folder}"
            raise UserError(what, key=str(one), fix=fix, family="ensemble")
    return [(one, None) for one in folders]


def table_of(
    summary: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Measured]
) -> tuple[list[str], list[list[str]]]:
    """Make heads and rows of the table of a cross-validation."""
    heads, rows = ["metric", "all rows", "95 % of rows", "mean of folds", "sd"], list[list[str]]()
    for name, found in summary.items():
        if name.startswith("train/"):
            continue
        over = measured.get(name)
        ends = "" if over is None or over.interval is None else "{:.4f} to {:.4f}".format(*over.interval)
        sd = "" if found["sd"] is None else f"{found['sd']:.4f}"
        rows.append([name, "" if over is None else f"{over.value:.4f}", ends, f"{found['mean']:.4f}", sd])
    return heads, sorted(rows, key=lambda row: not row[1])
