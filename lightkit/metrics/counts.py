"""What the figures are drawn from: a confusion matrix and curves, accumulated by torchmetrics over a split."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.metrics.inputs import convert
from lightkit.metrics.states import alone

EXACT_ELEMENTS = 20_000_000
"""Curves are exact up to this many scores (80 MB); beyond, they go through fixed thresholds in constant memory."""
THRESHOLDS = 401
_STEEPEST_LOGIT = 14.0
_BLOCK_ELEMENTS = 1_000_000


class Curve(NamedTuple):
    """One line of a figure.

    Args:
        label: Class or label it belongs to.
        x: Values on the horizontal axis, `(P,)`.
        y: Values on the vertical axis, `(P,)`.
        area: Area under it: AUROC, or average precision.
    """

    label: str
    x: Tensor
    y: Tensor
    area: float


class Counts:
    """Accumulates on the CPU, a block of batches at a time.

    Args:
        task: `multiclass`, `binary` or `multilabel`.
        num_classes: Classes or labels.
        curves: Whether scores are needed too.
    """

    def __init__(self, task: str, num_classes: int, *, curves: bool) -> None:
        self.task, self.num_classes, self.with_curves = task, num_classes, curves
        self._queue: list[tuple[Tensor, Tensor]] = []
        self._queued = self._seen = 0
        self._metrics: dict[str, Any] = {}

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch of raw outputs and targets."""
        self._queue.append((preds.detach().cpu(), target.detach().cpu()))
        self._queued += preds.numel()
        if self._queued >= _BLOCK_ELEMENTS:
            self._flush()

    def confusion(self) -> Tensor:
        """Return `(C, C)` counts, rows true and columns predicted; `(L, 2, 2)` for several labels."""
        self._flush()
        return self._metrics["matrix"].compute()

    def curves(self, kind: str, names: list[str]) -> list[Curve]:
        """Return the curves of every class against the rest, or of every label; of those with a sample.

        Args:
            kind: `roc` (x false positive rate, y true positive rate) or `pr` (x recall, y precision).
            names: Names of the classes.
        """
        self._flush()
        source, seen = self._metrics["curve"], [row.support > 0 for row in per_class(self.confusion(), names)]
        drawn = self._build("ROC", source.thresholds) if kind == "roc" else source
        if drawn is not source:
            for name in source.metric_state:
                setattr(drawn, name, getattr(source, name))
            drawn._update_count = source._update_count
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class without samples has no curve: it is left out below
            first, second, _ = drawn.compute()
        xs, ys = (first, second) if kind == "roc" else (second, first)
        xs, ys = ([xs], [ys]) if self.task == "binary" else (xs, ys)
        curves = []
        for name, x, y, some in zip(names, xs, ys, seen):
            if some:
                # By trapezoids; average precision is the mean precision weighted by the steps in recall.
                area = torch.trapezoid(y, x).abs() if kind == "roc" else -((x[1:] - x[:-1]) * y[:-1]).sum()
                curves.append(Curve(name, x, y, float(area)))
        return curves

    def _flush(self) -> None:
        if not self._queue:
            return
        preds, target = (torch.cat(parts) for parts in zip(*self._queue))
        self._queue, self._queued, self._seen = [], 0, self._seen + self._queued
        preds, target = convert(self.task, preds, target)
        if not self._metrics:
            self._metrics["matrix"] = self._build("ConfusionMatrix")
            self._metrics |= {"curve": self._build("PrecisionRecallCurve", None)} if self.with_curves else {}
        self._metrics["matrix"].update(preds, target)
        if not self.with_curves:
            return
        exact = self._metrics["curve"]
        exact.update(preds, target)
        if exact.thresholds is not None or self._seen <= EXACT_ELEMENTS:
            return
        # Exact curves would take too much memory from here on, so thresholds are fixed: evenly spaced logits, not
        # probabilities, as the scores of a good model crowd at 0 and 1.
        inner = torch.linspace(-_STEEPEST_LOGIT, _STEEPEST_LOGIT, THRESHOLDS - 2).sigmoid()
        binned = self._build("PrecisionRecallCurve", torch.cat([torch.zeros(1), inner, torch.ones(1)]))
        for preds, target in zip(exact.preds, exact.target):
            binned.update(preds, target)
        self._metrics["curve"] = binned

    def _build(self, kind: str, thresholds: Any = False) -> Any:
        """Make the metric of that kind for the task."""
        from torchmetrics import classification

        sizes = {"multiclass": {"num_classes": self.num_classes}, "multilabel": {"num_labels": self.num_classes}}
        options: dict[str, Any] = dict(sizes.get(self.task, {}))
        options |= {} if thresholds is False else {"thresholds": thresholds}
        return alone(getattr(classification, f"{self.task.capitalize()}{kind}")(**options))


class ClassRow(NamedTuple):
    """One class of the per-class table.

    Args:
        name: Class or label.
        precision: Share of its predictions that are right; NaN when never predicted.
        recall: Share of its samples that were found; NaN when there are none.
        f1: Harmonic mean of the two.
        support: Samples of the class.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int


def per_class(matrix: Tensor, names: list[str]) -> list[ClassRow]:
    """Compute precision, recall and F1 of every class from a confusion matrix.

    Args:
        matrix: What `Counts.confusion` gave; of a binary task only the positive class is told.
        names: Names of the classes or labels, or of the positive class.
    """
    if matrix.ndim == 3:
        hits, predicted, actual = matrix[:, 1, 1], matrix[:, :, 1].sum(1), matrix[:, 1].sum(1)
    else:
        hits, predicted, actual = matrix.diagonal(), matrix.sum(0), matrix.sum(1)
    start = len(hits) - len(names)
    counts = zip(hits[start:].tolist(), predicted[start:].tolist(), actual[start:].tolist())
    return [
        ClassRow(name, _share(hit, guess), _share(hit, real), _share(2 * hit, guess + real), int(real))
        for name, (hit, guess, real) in zip(names, counts)
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
