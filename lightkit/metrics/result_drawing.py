"""How results of metrics that are no numbers are drawn: curves, matrices and long vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from lightkit.metrics import drawing
from lightkit.metrics.counts import Curve
from lightkit.metrics.results import CONFUSION, PR, ROC, labels_of

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
        return (drawing.precision_recall if kind == PR else drawing.roc)(curves) if curves else None
    value = arrays.get("value")
    if value is None or value.dtype.kind not in "biuf":
        return None
    if kind == CONFUSION and value.ndim in (2, 3):
        names = labels_of(classes, len(value))
        of_labels = value.ndim == 3
        return (drawing.label_matrices if of_labels else drawing.confusion_matrix)(torch.from_numpy(value), names)
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
    found = (_curve(label, *map(torch.from_numpy, pair), steps=steps) for label, pair in pairs.items())
    return [curve for curve in found if len(curve.x)]


def _curve(label: str, x: torch.Tensor, y: torch.Tensor, *, steps: bool) -> Curve:
    known = x.isfinite() & y.isfinite()  # of a class without samples nothing is
    x, y = x[known], y[known]
    area = ((x[1:] - x[:-1]) * y[:-1]).sum().abs() if steps else torch.trapezoid(y, x).abs()
    return Curve(label, x, y, float(area))


def _values(value: Any, title: str) -> Figure:
    figure, axes = drawing.new_figure(6.4, 4.8, title)
    if value.ndim == 1:
        axes.plot(value, color=drawing.BLUE, linewidth=1.4)
        axes.grid(color=drawing.FAINT, linewidth=0.5)
        return figure
    image = axes.imshow(value, cmap="Blues", aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    return figure
