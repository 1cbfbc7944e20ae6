"""Figures of metrics: of confusions, classes and curves, and of any result that is no number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from lightkit.common.drawing import (
    BLUE,
    COLOURS,
    FAINT,
    INK,
    ORANGE,
    add_legend,
    bare,
    cells,
    new_figure,
    panels,
    ruled,
    short,
    write_cell,
)
from lightkit.metrics.figures import ClassRow, Curve, curve_of
from lightkit.metrics.results import CONFUSION, PR, ROC, labels_of

WRITTEN_CELLS = 20
_NAMED_CLASSES = 60
_ROWS = 40
_PANELS = 24
_LINES = 10


def confusions(counts: Tensor, names: Sequence[str]) -> Figure:
    """Draw the confusions of classes, or of several labels.

    Args:
        counts: `(C, C)` of classes, `(L, 2, 2)` of labels.
        names: Names of the classes or labels.
    """
    return (_label_matrices if counts.ndim == 3 else _confusion_matrix)(counts, names)


def _confusion_matrix(matrix: Tensor, names: Sequence[str]) -> Figure:
    """Draw a heat map, rows true and columns predicted, with counts written in while they fit."""
    counts, size = matrix.numpy().astype(float), len(names)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    width = min(14.0, max(4.6, 2.4 + (0.5 if size <= WRITTEN_CELLS else 0.2) * size))
    figure, axes = new_figure(width + 0.6, width, "True class against predicted class")
    # of many classes most cells are rare mistakes, which a linear scale would hide
    scale = PowerNorm(1.0 if size <= WRITTEN_CELLS else 0.5, vmin=0, vmax=1)
    image = axes.imshow(shares, cmap="Blues", norm=scale, interpolation="nearest")
    square_ticks(axes, names)
    axes.set(xlabel="predicted", ylabel="true")
    written: tuple[Any, float] = (None, 0.0)
    if size <= WRITTEN_CELLS:
        written = _counted(counts, shares, digits=max(1, len(str(int(counts.max())))))
    else:
        # the three most frequent confusions, which nobody finds in a large matrix
        wrong = counts - np.diag(np.diag(counts))
        places = [np.unravel_index(at, wrong.shape) for at in np.argsort(-wrong, axis=None, kind="stable")[:3]]
        told = [f"{short(names[t])} as {short(names[p])} ({int(wrong[t, p])})" for t, p in places if wrong[t, p]]
        mistakes = f"most frequent mistakes: {', '.join(told)}" if told else "no mistakes"
        axes.set_title(mistakes, loc="left", fontsize=8, color=INK)
    bar = cells(axes, image, *written)
    bar.set_label("share of the true class", color=INK)
    return figure


def _label_matrices(matrices: Tensor, names: Sequence[str]) -> Figure:
    """Draw right and wrong answers of every label, a small panel each; of many labels those with most errors.

    Args:
        matrices: Counts `(L, 2, 2)`: true no/yes, predicted no/yes.
        names: Names of the labels.
    """
    wrong = matrices[:, 0, 1] + matrices[:, 1, 0]
    chosen = sorted(wrong.argsort(descending=True, stable=True)[:_PANELS].tolist())
    across = min(6, math.ceil(math.sqrt(len(chosen))))
    title = "Labels: true against predicted" + _of_many(len(chosen), len(names), "most errors")
    figure, places = panels(len(chosen), across, (1.7, 1.9), title)
    for label, axes in zip(chosen, places):
        counts = matrices[label].numpy().astype(float)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        texts, size = _counted(counts, shares, digits=max(3, len(str(int(counts.max())))))
        for row, column, share, text in texts:
            write_cell(axes, row, column, text, image.cmap(share), size)
        axes.set_title(short(names[label]), fontsize=9, color=INK)
        axes.set_xticks([0, 1], ["no", "yes"], fontsize=7)
        axes.set_yticks([0, 1], ["no", "yes"], fontsize=7)
        bare(axes)
    return figure


def per_class(rows: Sequence[ClassRow]) -> Figure:
    """Draw precision, recall and F1 of each class as dots on a line; of many classes the weakest.

    Args:
        rows: The per-class table.
    """
    weakest = sorted(range(len(rows)), key=lambda at: -1.0 if math.isnan(rows[at].f1) else rows[at].f1)[:_ROWS]
    shown = [rows[at] for at in sorted(weakest)]
    title = "Precision, recall and F1" + _of_many(len(shown), len(rows), "weakest")
    figure, axes = new_figure(7.0, 1.5 + 0.32 * max(2, len(shown)), title)
    places = range(len(shown))
    for place, row in zip(places, shown):
        axes.plot(
            [row.precision, row.recall], [place, place], color=FAINT, linewidth=5, solid_capstyle="round", zorder=1
        )
    for colour, marker, label in ((BLUE, "o", "precision"), (ORANGE, "o", "recall"), (INK, "|", "f1")):
        values = [getattr(row, label) for row in shown]
        size = 90 if marker == "|" else 34
        axes.scatter(values, places, s=size, color=colour, marker=marker, label=label.replace("f1", "F1"), zorder=3)
    lowest = min((v for row in shown for v in row[1:4] if not math.isnan(v)), default=0.0)
    start = max(0.0, math.floor((lowest - 0.02) * 20) / 20)
    axes.set(xlim=(start - (1 - start) * 0.02, 1 + (1 - start) * 0.02), ylim=(len(shown) - 0.4, -0.6))
    axes.set_yticks(places, [f"{short(row.name)}  ({row.support:,})" for row in shown])
    ruled(axes, "x")
    add_legend(axes, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
    axes.set_xlabel("value; samples of the class in brackets")
    bare(axes)
    return figure


def roc(curves: Sequence[Curve]) -> Figure:
    """Draw the receiver operating characteristic of each class against the rest.

    Args:
        curves: x false positive rate, y true positive rate.
    """
    figure, axes = new_figure(7.4, 5.4, "ROC: found against falsely reported")
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    _draw_curves(axes, curves, area="AUROC", steps=False)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    return figure


def precision_recall(curves: Sequence[Curve]) -> Figure:
    """Draw precision over recall of each class against the rest.

    Args:
        curves: x recall, y precision.
    """
    figure, axes = new_figure(7.4, 5.4, "Precision over recall")
    _draw_curves(axes, curves, area="AP", steps=True)
    axes.set(xlabel="recall", ylabel="precision")
    return figure


def _draw_curves(axes: Axes, curves: Sequence[Curve], *, area: str, steps: bool) -> None:
    """Draw few classes each in a colour; of many the weakest, with the rest as a pale background."""
    weakest = sorted(range(len(curves)), key=lambda at: curves[at].area)[
        : _LINES if len(curves) <= _LINES else _LINES // 2
    ]
    style = "steps-pre" if steps else "default"
    for at, curve in enumerate(curves):
        if at not in weakest:
            axes.plot(curve.x, curve.y, color=FAINT, linewidth=0.8, zorder=2, drawstyle=style)
    for colour, at in zip(COLOURS, sorted(weakest)):
        curve = curves[at]
        label = f"{curve.area:.3f}  {short(curve.label)}"
        axes.plot(curve.x, curve.y, color=colour, linewidth=1.7, label=label, zorder=3, drawstyle=style, alpha=0.9)
    if len(curves) > 1:
        mean = float(np.nanmean([curve.area for curve in curves]))
        axes.plot([], [], " ", label=f"{mean:.3f}  mean of {len(curves)}")
    title = f"{area}\nweakest {len(weakest)} of {len(curves)}" if len(weakest) < len(curves) else area
    legend = add_legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5), title=title, title_fontsize=8)
    legend.get_title().set(color=INK, fontweight="bold")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.04), aspect="equal")
    ruled(axes)
    bare(axes)


def square_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Name rows and columns of a square while the names can be read, then every so many by number."""
    size = len(names)
    stride = 1 if size <= _NAMED_CLASSES else 10 * math.ceil(size / 400)
    places = list(range(0, size, stride))
    labels = [short(names[at]) if stride == 1 else str(at) for at in places]
    small = 8 if size <= WRITTEN_CELLS else 6.5
    longest = max(map(len, labels), default=0)
    axes.set_xticks(places, labels, fontsize=small, rotation=90 if longest > 3 and size > 4 else 0)
    axes.set_yticks(places, labels, fontsize=small)


def _counted(counts: Any, shares: Any, *, digits: int) -> tuple[list[tuple[int, int, float, str]], float]:
    """Return the counts to write into cells with their shares, zeros left out, and the size of the texts."""
    texts = [(row, column, shares[row, column], f"{int(n)}") for (row, column), n in np.ndenumerate(counts) if n]
    return texts, max(5.0, 9.5 - 0.7 * digits) if len(counts) > 2 else 9.0


def _of_many(shown: int, total: int, which: str) -> str:
    return f" ({which}: {shown} of {total})" if shown < total else ""


_AXES = {ROC: ("fpr", "tpr"), PR: ("recall", "precision")}


def draw(arrays: Mapping[str, Any], *, title: str) -> Figure | None:
    """Draw a result; None where it has more than two dimensions, is a text, or nothing of it is known.

    Args:
        arrays: What `Shaped.arrays` gave.
        title: Stands above values that are neither curves nor counts.
    """
    kind, classes = str(arrays["kind"]), [str(name) for name in arrays["classes"]]
    if kind in _AXES:
        curves = _curves(arrays, *_AXES[kind], classes, steps=kind == PR)
        return (precision_recall if kind == PR else roc)(curves) if curves else None
    value = arrays.get("value")
    if value is None or value.dtype.kind not in "biuf":
        return None
    if kind == CONFUSION and value.ndim in (2, 3):
        names = labels_of(classes, len(value))
        return confusions(torch.from_numpy(value), names)
    return _values(value, title) if value.ndim in (1, 2) and value.size else None


def _curves(arrays: Mapping[str, Any], x: str, y: str, classes: list[str], *, steps: bool) -> list[Curve]:
    """Return the curves: one, one for each row, or one for each class that has a part of its own."""
    if x in arrays:
        xs, ys = np.atleast_2d(arrays[x]), np.atleast_2d(arrays[y])
        labels = labels_of(classes, len(xs)) if arrays[x].ndim > 1 else [""]
        pairs = dict(zip(labels, zip(xs, ys)))
    else:
        labels = [name.partition("/")[2] for name in arrays if name.startswith(f"{x}/")]
        pairs = {label: (arrays[f"{x}/{label}"], arrays[f"{y}/{label}"]) for label in labels}
    found = (curve_of(label, *map(torch.from_numpy, pair), steps=steps) for label, pair in pairs.items())
    return [curve for curve in found if len(curve.x)]


def _values(value: Any, title: str) -> Figure:
    figure, axes = new_figure(6.4, 4.8, title)
    if value.ndim == 1:
        axes.plot(value, color=BLUE, linewidth=1.4)
        ruled(axes)
        return figure
    image = axes.imshow(value, cmap="Blues", aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    return figure
