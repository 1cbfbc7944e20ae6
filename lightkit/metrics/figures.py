"""Figures and tables of the final evaluation, from a confusion matrix and curves that torchmetrics accumulates."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.common.collecting import uncollected
from lightkit.common.csv_lines import CsvWriter
from lightkit.common.sparing import sparingly
from lightkit.metrics.collection import alone, convert

TASKS = ("multiclass", "binary", "multilabel")
NAMES = ("confusion_matrix", "per_class", "roc", "pr")


class Figures:
    """Collects outputs of a whole split and draws what was asked for; give it to `evaluate` beside the metrics.

    Args:
        task: Kind of targets; only `multiclass`, `binary`, `multilabel` and `segmentation` have figures.
        names: `confusion_matrix`, `per_class`, `roc`, `pr`; others are not of a single model, and left out.
        class_names: Names of classes or labels; numbers where they do not fit `num_classes`.
        num_classes: Classes or labels; 1 for `binary`.
    """

    def __init__(self, task: str, names: Sequence[str], class_names: Sequence[str], num_classes: int) -> None:
        task = "binary" if (task, num_classes) == ("multilabel", 1) else task
        task = "multiclass" if task == "segmentation" else task  # of pixels
        self.task, self.names = task, [name for name in names if name in NAMES] if task in TASKS else []
        classes = 2 if task == "binary" else num_classes
        known = [str(name) for name in class_names]
        if task == "binary" and len(known) == 1:
            known = [f"not {known[0]}", known[0]]
        self.class_names = known if len(known) == classes else [str(index) for index in range(classes)]
        self._counts = Counts(self.task, num_classes, curves=bool({"roc", "pr"} & set(self.names)))
        self._empty = True

    def update(self, preds: Any, target: Any, *_more: Any) -> None:
        """Take in a batch; same arguments as `SplitMetrics.update`, of which only the first two are used."""
        if self.names and isinstance(preds, Tensor) and isinstance(target, Tensor):
            self._empty = False
            if target.ndim > 2:  # some pixels may count for nothing
                counted = (target >= 0) & (target < preds.shape[1])
                preds, target = preds.movedim(1, -1)[counted], target[counted]
            self._counts.update(preds, target)

    def draw(self) -> dict[str, Any]:
        """Draw the matplotlib figures, by name, in the order asked for."""
        from lightkit.metrics import drawing  # matplotlib is slow to import

        if self._empty:
            return {}

        makers = {
            "confusion_matrix": lambda: drawing.confusions(self._counts.confusion(), self.class_names),
            "per_class": lambda: drawing.per_class(self.rows()),
            "roc": lambda: drawing.roc(self._counts.curves("roc", self._curve_names("roc"))),
            "pr": lambda: drawing.precision_recall(self._counts.curves("pr", self._curve_names("pr"))),
        }
        return {name: makers[name]() for name in self.names}

    def rows(self) -> list[ClassRow]:
        """Return the per-class table."""
        return [] if self._empty else per_class(self._counts.confusion(), self._curve_names("pr"))

    def tables(self) -> dict[str, tuple[list[str], list[list[Any]]]]:
        """Return tables by name: heads of the columns and rows of plain values."""
        if self._empty or "per_class" not in self.names:
            return {}
        return {"per_class": (list(ClassRow._fields), [list(row) for row in self.rows()])}

    @uncollected()  # matplotlib is imported here, and makes many objects
    def write(self, logger: Any, folder: Path | str, *, step: int, split: str = "test") -> None:
        """Hand figures and tables to a logger, and write them as PNG and CSV files.

        Args:
            logger: A `lightkit.loggers.Logger`.
            folder: Where the files go; made when there is something to write.
            step: Optimizer steps taken.
            split: Begins the names in the logger (`test/roc`).
        """
        target = Path(folder)
        write_figures({f"{split}/{name}": figure for name, figure in self.draw().items()}, logger, target, step=step)
        for name, (columns, rows) in self.tables().items():
            with (target / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                CsvWriter(file).rows([columns, *rows])
            logger.text(f"{split}/{name}", _markdown(columns, rows), step=step)

    def _curve_names(self, kind: str) -> list[str]:
        """Return the classes a curve is drawn for: a yes-or-no question has one."""
        return self.class_names[1:] if self.task == "binary" else self.class_names


def write_figures(figures: Mapping[str, Any], logger: Any, folder: Path, *, step: int) -> None:
    """Hand figures to a logger, and write them as PNG files.

    Args:
        figures: Matplotlib figures by name, such as `test/roc`, which becomes `roc.png`.
        logger: A `lightkit.loggers.Logger`.
        folder: Where the files go; made when there is something to write.
        step: Optimizer steps taken.
    """
    if not figures:
        return
    from matplotlib.image import imsave  # slow to import, as all of matplotlib

    from lightkit.common.drawing import pixels

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        imsave(folder / f"{name.rpartition('/')[2]}.png", pixels(figure), dpi=figure.dpi)
        logger.figure(name, figure, step=step)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "–" if math.isnan(value) else f"{value:.4f}"
        return str(value).replace("|", "\\|")

    lines = [columns, ["---"] * len(columns), *(map(cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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


def curve_of(label: str, x: Tensor, y: Tensor, *, steps: bool) -> Curve:
    """Return a curve with the area under it: by trapezoids, or in `steps`, as the mean precision over the recall is."""
    known = x.isfinite() & y.isfinite()  # of a class without samples nothing is
    x, y = x[known], y[known]
    area = ((x[1:] - x[:-1]) * y[:-1]).sum().abs() if steps else torch.trapezoid(y, x).abs()
    return Curve(label, x, y, float(area))


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
        found = zip(names, xs, ys, seen)
        return [curve_of(name, x, y, steps=kind == "pr") for name, x, y, some in found if some]

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
        sizes = {"multiclass": {"num_classes": self.num_classes}, "multilabel": {"num_labels": self.num_classes}}
        options: dict[str, Any] = dict(sizes.get(self.task, {}))
        options |= {} if thresholds is False else {"thresholds": thresholds}
        classification = sparingly(lambda: import_module("torchmetrics.classification"))
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
