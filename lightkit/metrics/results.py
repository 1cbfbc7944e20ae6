"""What a metric gives, as what can be logged: numbers by name, and what is none, such as curves and matrices.

Shapes: C classes or labels, P points of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.metrics.inputs import wrapped

MOST_NUMBERS = 200
"""A vector is logged number by number up to this length, or where there is a name for each of them."""
ROC, PR, CONFUSION, VALUES = "roc", "pr", "confusion", "values"
_CURVES = {"ROC": (ROC, ("fpr", "tpr")), "PrecisionRecallCurve": (PR, ("precision", "recall"))}
_POINTS = ("AtFixedRecall", "AtFixedPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity")
"""Metrics that give a value and the place on a curve where it is reached."""


class Shaped(NamedTuple):
    """A result that is no number: it becomes a file, and a figure where it can be drawn.

    Args:
        kind: `roc`, `pr`, `confusion` or `values`.
        parts: Arrays by name, such as `fpr` and `tpr`; a list of arrays holds one for each class.
        classes: Names of the classes or labels.
    """

    kind: str
    parts: Mapping[str, Any]
    classes: tuple[str, ...] = ()

    def arrays(self) -> dict[str, Any]:
        """Return it as arrays of NumPy by name, of a list each by the name of its class: `fpr/cat`."""
        found: dict[str, Any] = {"kind": np.array(self.kind), "classes": np.array(self.classes, dtype=np.str_)}
        for name, part in self.parts.items():
            if isinstance(part, (list, tuple)):
                labels = self.labels(len(part))
                found |= {f"{name}/{label}": _array(one) for label, one in zip(labels, part)}
            else:
                found[name] = _array(part)
        return found

    def labels(self, count: int) -> list[str]:
        """Return the names of so many classes; numbers where they do not fit."""
        return labels_of(self.classes, count)


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.array(value)


def labels_of(class_names: Sequence[str], count: int) -> list[str]:
    """Return the names of so many classes; numbers where they do not fit."""
    return list(class_names) if len(class_names) == count else [str(index) for index in range(count)]


def flatten(
    name: str, result: Any, class_names: Sequence[str], metric: Any = None
) -> tuple[dict[str, Tensor], dict[str, Shaped]]:
    """Split a metric's result into single numbers and everything else; nothing of it is left out.

    Args:
        name: Name of the metric.
        result: What its `compute` gave: a number, a vector (one value per class), a curve, a matrix, or a tuple or
            mapping of these.
        class_names: Names for the values of a vector; used where their number fits.
        metric: The metric, whose class tells what the parts of its result mean.

    Returns:
        0-d tensors by name (`f1`, `f1/cat`, `recall_at_precision_threshold`), and results that are no numbers.

    Raises:
        UserError: It is neither.
    """
    if isinstance(result, Mapping):
        return _merged(flatten(f"{name}/{key}", value, class_names, metric) for key, value in result.items())
    if isinstance(result, (tuple, list)) and not _is_numbers(result):
        return _of_parts(name, result, class_names, metric)
    if isinstance(result, str):
        return {}, {name: Shaped(VALUES, {"text": result})}
    try:
        value = result if isinstance(result, Tensor) else torch.as_tensor(result)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"its result is of a kind that cannot be logged: {type(result).__name__}",
            argument=name.partition("/")[0],
            expected="numbers, tensors, texts, or mappings and tuples of these",
        ) from None
    if value.numel() == 1:
        return {name: value.reshape(())}, {}
    if value.ndim != 1 or (len(value) > MOST_NUMBERS and len(value) != len(class_names)) or not len(value):
        kind = CONFUSION if _is_a(metric, "ConfusionMatrix") and not value.is_floating_point() else VALUES
        return {}, {name: Shaped(kind, {"value": value.detach().cpu()}, tuple(class_names))}
    return {f"{name}/{label}": one for label, one in zip(labels_of(class_names, len(value)), value)}, {}


def _of_parts(
    name: str, result: Sequence[Any], class_names: Sequence[str], metric: Any
) -> tuple[dict[str, Tensor], dict[str, Shaped]]:
    """Split a result of several parts."""
    place = "top_k" if _is_a(metric, "RetrievalPrecisionRecallCurve") else "thresholds"
    for end, (kind, names) in _CURVES.items():
        if _is_a(metric, end) and not _is_point(metric) and len(result) == 3:
            return {}, {name: Shaped(kind, dict(zip((*names, place), result)), tuple(class_names))}
    if _is_point(metric) and len(result) == 2:
        ends: Sequence[str] = ("", f"_{place.removesuffix('s')}")
    else:
        ends = [f"/{field}" for field in getattr(result, "_fields", range(len(result)))]
    return _merged(flatten(f"{name}{end}", value, class_names) for end, value in zip(ends, result))


def _merged(parts: Any) -> tuple[dict[str, Tensor], dict[str, Shaped]]:
    numbers, shaped = dict[str, Tensor](), dict[str, Shaped]()
    for some, rest in parts:
        numbers |= some
        shaped |= rest
    return numbers, shaped


def _is_numbers(result: Sequence[Any]) -> bool:
    return all(isinstance(value, (bool, int, float)) for value in result)


def _is_point(metric: Any) -> bool:
    return any(_is_a(metric, end) for end in _POINTS)


def _is_a(metric: Any, end: str) -> bool:
    """Tell whether a metric, or the one inside of a wrapper, is of a class of torchmetrics whose name ends so."""
    inner = None if metric is None else wrapped(metric)
    return any(base.__name__.endswith(end) for base in type(metric if inner is None else inner).__mro__)


_NO_NUMBERS = {
    f"{task}{end}" for task in ("Binary", "Multiclass", "Multilabel") for end in (*_CURVES, "ConfusionMatrix")
}


def gives_no_numbers(metric: Any) -> bool:
    """Tell whether a metric is known to give a curve or a matrix."""
    return type(metric).__name__ in _NO_NUMBERS
