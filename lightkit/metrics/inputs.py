"""What each family of metrics wants to see of a model's raw output.

Models give logits, as the losses take them. torchmetrics guesses per call whether values are logits or probabilities,
so that the same sample could be read differently in another batch; here the family of the metric decides instead, once.

Shapes: N samples, C classes, L labels, `...` further dimensions such as pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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


def convert(kind: str, preds: Any, target: Any) -> tuple[Any, Any]:
    """Convert outputs and targets to what the metrics of a family take.

    Args:
        kind: What `kind_of` said.
        preds: Raw output of the model, or texts, which only metrics of the kind `raw` take.
        target: What the loss compared it with.

    Raises:
        TypeError: They are no tensors, and the metrics of the family take tensors.
    """
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


CONVERTERS = {
    "scores": _scores,
    "multiclass": _multiclass,
    "binary": _binary,
    "multilabel": _multilabel,
    "regression": _regression,
    "retrieval": _retrieval,
    "graded": _graded,
    "raw": lambda preds, target: (preds, target),
}
"""Families of metrics and the conversion each needs."""
