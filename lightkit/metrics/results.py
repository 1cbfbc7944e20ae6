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
from lightkit.metrics.texts import ANSWERS, REFERENCES, TEXTS, Decode, as_texts, kind_of_text

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
    if isinstance(result, (tuple, list)) and not all(isinstance(value, (bool, int, float)) for value in result):
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


_INSIDE, _INSIDE_KNOWN = ("metric", "_base_metric"), ("base_metric", "metrics")
"""Attributes in which wrappers keep what they wrap, and further ones of torchmetrics' own."""
_ARGMAX_FAMILIES = ("MulticlassStatScores", "MulticlassConfusionMatrix")


def kind_of(metric: Any) -> str:
    """Find the family that a metric belongs to, a key of `CONVERTERS`.

    A metric of your own is handed the output as it is (`raw`), or what its attribute `inputs` names.

    Args:
        metric: A torchmetrics metric; a wrapper counts as what it wraps.
    """
    if isinstance(getattr(metric, "inputs", None), str):
        return str(metric.inputs)
    inner = wrapped(metric)
    if inner is not None:
        return kind_of(inner)
    bases = [base for base in type(metric).__mro__ if base.__module__.startswith("torchmetrics.")]
    if any(base.__module__.startswith("torchmetrics.regression") for base in bases):
        return "regression"
    if any(base.__module__.startswith("torchmetrics.retrieval") for base in bases):
        return "graded" if getattr(metric, "allow_non_binary_target", False) else "retrieval"
    names = [base.__name__ for base in bases]
    if any(base.__module__.startswith("torchmetrics.text") for base in bases):
        return kind_of_text(names)
    if any(name.startswith("Multiclass") for name in names):
        return "scores" if any(name in _ARGMAX_FAMILIES for name in names) else "multiclass"
    return next((kind for kind in ("binary", "multilabel") if any(n.lower().startswith(kind) for n in names)), "raw")


def wrapped(metric: Any) -> Any:
    """Return the metric inside of a wrapper such as torchmetrics', of several copies the first, if there is one."""
    is_known = any(base.__module__.startswith("torchmetrics.wrappers") for base in type(metric).__mro__)
    names = (*_INSIDE, *_INSIDE_KNOWN) if is_known else _INSIDE
    inner = next((getattr(metric, name) for name in names if getattr(metric, name, None) is not None), None)
    inner = inner[0] if isinstance(inner, torch.nn.ModuleList) and len(inner) else inner
    return inner if hasattr(inner, "metric_state") else None


def convert(kind: str, preds: Any, target: Any, decode: Decode | None = None) -> tuple[Any, Any]:
    """Convert outputs and targets to what the metrics of a family take.

    Args:
        kind: What `kind_of` said.
        preds: Raw output of the model, or texts, which only metrics of the kind `raw` and those of texts take.
        target: What the loss compared it with.
        decode: Makes a text of tokens; None where the data set does not.

    Raises:
        TypeError: They are no tensors, and the metrics of the family take tensors.
    """
    if kind in (TEXTS, REFERENCES, ANSWERS):
        return as_texts(kind, preds, target, decode)
    if kind != "raw" and not (isinstance(preds, Tensor) and isinstance(target, Tensor)):
        raise TypeError("it takes tensors")
    if isinstance(preds, Tensor) and preds.dtype in (torch.float16, torch.bfloat16):
        preds = preds.float()
    return CONVERTERS[kind](preds, target)


def _scores(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Keep logits `(N, C, ...)`, for metrics that only ask which class is largest; labels `(N, ...)`."""
    if target.is_floating_point() and target.shape == preds.shape:
        target = target.argmax(1)  # shares of classes, from mixup or label smoothing
    return preds, target


def _multiclass(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities `(N, C, ...)` and labels `(N, ...)`."""
    preds, target = _scores(preds, target)
    return (preds.softmax(1) if preds.is_floating_point() else preds), target


def _binary(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities `(N,)` and labels 0 or 1 `(N,)`, from `(N,)` or `(N, 1)`."""
    preds, target = _multilabel(preds, target)
    return preds.flatten(), target.flatten()


def _multilabel(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities `(N, L, ...)` and labels 0 or 1 of the same shape."""
    preds = preds.sigmoid() if preds.is_floating_point() else preds
    return preds, ((target > 0.5).long() if target.is_floating_point() else target)


def _regression(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in double precision, as float32 sums of squares lose digits; `(N,)`, or `(N, K)` for several."""
    wide = _wide(preds)
    if preds.numel() == target.numel() == len(preds):
        preds, target = preds.flatten(), target.flatten()
    return preds.to(wide), target.to(wide)


def _graded(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores in the same order between 0 and 1, and relevances, `(N,)` from `(N,)` or `(N, 1)`.

    Only the order of scores counts in a ranking, but torchmetrics takes those of 0 and less for not found, and for
    `RetrievalAUROC` the sigmoid of those above 1, which is the same for all large ones.
    """
    if preds.numel() == target.numel():
        preds, target = preds.flatten(), target.flatten()
    scores = preds.to(_wide(preds))
    if scores.dtype != torch.float64:  # half of the digits would make scores equal that are not
        return torch.nn.functional.softplus(scores), target
    halves = 0.5 / (1 + scores.abs())
    return torch.where(scores < 0, halves, 1 - halves), target


def _retrieval(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores in the same order between 0 and 1, and relevances of 0 or 1, `(N,)`."""
    preds, target = _graded(preds, target)
    return preds, ((target > 0.5).long() if target.is_floating_point() else target)


def _wide(preds: Tensor) -> torch.dtype:
    return torch.float32 if preds.device.type == "mps" else torch.float64


CONVERTERS: dict[str, Any] = {
    "scores": _scores,
    "multiclass": _multiclass,
    "binary": _binary,
    "multilabel": _multilabel,
    "regression": _regression,
    "retrieval": _retrieval,
    "graded": _graded,
    "raw": lambda preds, target: (preds, target),
    **dict.fromkeys((TEXTS, REFERENCES, ANSWERS), as_texts),
}
"""Families of metrics and the conversion each needs."""
