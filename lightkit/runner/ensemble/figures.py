"""Pictures of an ensemble and their curves: over epochs and size, differences, calibration and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.common import run_files
from lightkit.ensemble.calibration import reliability
from lightkit.ensemble.combining import as_probabilities, hard, soft
from lightkit.ensemble.diversity import BySize, by_size, disagreement, error_correlation
from lightkit.ensemble.methods.base import MemberResult
from lightkit.ensemble.oof import MemberPredictions
from lightkit.ensemble.validations import Validation, read_validations
from lightkit.runner.ensemble.report import Outcome, SplitMeter
from lightkit.runs.reading import read_metrics

ENSEMBLE = "ensemble"
"""Name of these pictures in `metrics.figures`."""
_EVALUATIONS = 120
"""Ensembles of different sizes that are measured at most."""
_FEWEST_SIZES, _MOST_SIZES = 2, 16
Measure = Callable[[MemberPredictions], dict[str, float]]
"""Measures loss and metrics of predictions of one split."""


class CurvePoint(NamedTuple):
    """The ensemble at one validation."""

    step: int
    """Optimizer steps of the member that has taken most."""
    epoch: float
    """Epochs of the members."""
    values: dict[str, float]
    """Loss and metrics by name."""


def over_validations(
    outcome: Outcome, kept: Mapping[str, Sequence[Validation]], rows: Tensor, meter: SplitMeter
) -> list[CurvePoint]:
    """Measure the ensemble at each validation of its members, with the weights that it has in the end.

    A member that has ended counts with what it predicted at its last validation.

    Args:
        outcome: The ensemble.
        kept: The validations of each member that counts, by its name.
        rows: Rows of the validation split in the order of the outputs.
        meter: Measures predictions of this split.
    """
    shares = [outcome.made.weights[name] for name in kept]
    truth, order = outcome.made.predictions.of_split("val"), rows.argsort()
    begin = max(records[0].epoch for records in kept.values())
    reached = {record.epoch for records in kept.values() for record in records}
    places = sorted(place for place in reached if place >= begin)
    steps, found = list[int](), list[Tensor]()
    for place in places:
        newest = [[record for record in records if record.epoch <= place][-1] for records in kept.values()]
        outputs = torch.stack([record.outputs for record in newest]).index_select(1, order)
        columns = outputs.reshape(*outputs.shape[:2], -1).mT  # over the last dimension a softmax takes long
        predictions = as_probabilities(columns, truth.task).mT
        votes = outcome.rule == "hard" and truth.task != "regression"
        found.append(hard(predictions, shares, task=truth.task) if votes else soft(predictions, shares))
        steps.append(max(record.step for record in newest))
    points = map(CurvePoint, steps, places, meter.at_once(truth, found))
    return list({point.step: point for point in points}.values())


def over_size(outcome: Outcome, measure: Measure, *, seed: int = 0) -> BySize | None:
    """Measure the monitored metric of ensembles of fewer members; None where there is nothing to measure.

    Args:
        outcome: The ensemble.
        measure: Measures predictions.
        seed: Seed of the subsets.
    """
    split = outcome.metric.partition("/")[0]
    if len(outcome.made.own) < _FEWEST_SIZES or split not in ("val", "test"):
        return None
    predictions, rows = outcome.on(split)
    there = ~predictions.isnan().any(-1).any(0)
    if not there.any():
        return None
    rows, known, count = rows.take(there), predictions[:, there], len(predictions)
    most = min(count, _MOST_SIZES)
    sizes = sorted({1 + round(at * (count - 1) / (most - 1)) for at in range(most)})

    def metric(found: Tensor) -> float:
        if outcome.rule == "last":  # the newest stands for those before it
            together = found[-1]
        else:
            votes = outcome.rule == "hard" and rows.task != "regression"
            together = hard(found, task=rows.task) if votes else soft(found)
        return measure(replace(rows, predictions=together))[outcome.metric]

    if outcome.rule == "last":  # there are no other subsets
        values = [metric(known[:size]) for size in sizes]
        return BySize(sizes, values, [[value] for value in values])
    return by_size(known, metric, sizes=sizes, draws=max(3, min(20, _EVALUATIONS // len(sizes))), seed=seed)


def draw(outcome: Outcome, sizes: BySize | None, curve: Sequence[CurvePoint] = ()) -> dict[str, Any]:
    """Draw the figures by name, such as `test/over_size`; what is not defined for the task is left out.

    Args:
        outcome: The ensemble.
        sizes: See `over_size`.
        curve: The ensemble at each validation; nothing draws what it came to in the end.
    """
    from lightkit.metrics import ensemble_figures as figures  # matplotlib is slow to import

    split, names, task = outcome.split, outcome.names, outcome.made.predictions.task
    found: dict[str, Any] = {}
    if curves := epochs(outcome.made.members, outcome.monitor):
        end = max(epoch for xs, _ in curves.values() for epoch in xs)
        value = outcome.values.get(outcome.monitor)
        together = None if value is None else ([end], [value])
        if points := [
            (point.epoch, point.values[outcome.monitor]) for point in curve if outcome.monitor in point.values
        ]:
            together = [epoch for epoch, _ in points], [value for _, value in points]
        found["val/members-over-epochs"] = figures.over_epochs(curves, together, metric=outcome.monitor)
    if sizes is not None:
        where, _, metric = outcome.metric.partition("/")
        style: dict[str, Any] = {"metric": metric, "mode": outcome.mode, "split": where}
        first = sizes.first if outcome.rule != "last" else None
        found[f"{where}/over_size"] = figures.over_size(sizes.sizes, sizes.drawn, first=first, **style)
    predictions, rows = outcome.on(split)
    if len(predictions) > 1 and outcome.rule != "last":
        if task != "regression":
            title = "Rows that two members decide differently"
            found[f"{split}/disagreement"] = figures.pairs(disagreement(predictions, task).tolist(), names, title=title)
        correlation = error_correlation(predictions, rows.targets, task).tolist()
        title = "Correlation of the errors of two members"
        found[f"{split}/error_correlation"] = figures.pairs(correlation, names, title=title, signed=True)
    if task != "regression" and rows.predicted.any():
        bins = reliability(rows.predictions, rows.targets, task)
        columns = (bins.edges, bins.confidence, bins.accuracy, bins.counts)
        lists = [column.tolist() for column in columns]
        found[f"{split}/reliability"] = figures.reliability(*lists, error=bins.error, task=task)
    weights = list(outcome.made.weights.values())
    if len(weights) > 1 and max(weights) - min(weights) > 1e-9:
        found["val/weights"] = figures.weights(names, weights)
    return found


def epochs(members: Sequence[MemberResult], name: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return the epochs and values of a curve of each member, from its `metrics.jsonl`.

    Args:
        members: The members.
        name: Name of the value.
    """
    curves = {}
    for result in members:
        rows = [row for row in read_metrics(result.folder) if row.get(name) is not None]
        if rows:
            places = {own.step: own.epoch for own in read_validations(result.folder / run_files.VALIDATIONS)}
            reached = [places.get(row["step"], row["epoch"]) for row in rows]  # also in the middle of an epoch
            curves[result.member.name] = (reached, [row[name] for row in rows])
    return curves
