"""Whether the parts of a run go together, found out from their names before anything is built or read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from lightkit.common.errors import Problems, UserError
from lightkit.data import DataInfo
from lightkit.trainer.callbacks import Callback

LOSS_TASKS = {
    "torch.nn.CrossEntropyLoss": ("multiclass", "segmentation", "tagging"),
    "lightkit.losses.SupervisedContrastive": ("multiclass",),
    "lightkit.losses.FocalLoss": ("multiclass", "multilabel"),
    "lightkit.losses.TokenCrossEntropy": ("language_modeling",),
    "torch.nn.BCEWithLogitsLoss": ("multilabel", "binary"),
    "torch.nn.SoftMarginLoss": ("binary", "multilabel", "custom"),
    "torch.nn.HingeEmbeddingLoss": ("binary", "multilabel", "custom"),
    "torch.nn.MSELoss": ("regression",),
    "torch.nn.L1Loss": ("regression",),
    "torch.nn.HuberLoss": ("regression",),
}
"""Kinds of target each loss is for; nothing is said of a loss that is not listed."""
METRIC_TASKS = {
    "torchmetrics.classification.Multiclass": "multiclass",
    "torchmetrics.classification.Multilabel": "multilabel",
    "torchmetrics.classification.Binary": "binary",
    "torchmetrics.regression.": "regression",
    "torchmetrics.text.": "language_modeling",
    "lightkit.metrics.language.": "language_modeling",
    "lightkit.metrics.detection.": "detection",
}
"""The kind of target that metrics whose path begins so are for."""
OPTIONS = {
    "multiclass": ("cross_entropy", "multiclass"),
    "binary": ("bce_with_logits", "binary"),
    "multilabel": ("bce_with_logits", "multilabel"),
    "regression": ("mse", "regression"),
    "language_modeling": ("token_cross_entropy", "language_modeling"),
    "segmentation": ("cross_entropy", "segmentation"),
    "detection": ("of_model", "detection"),
    "tagging": ("cross_entropy", "tagging"),
}
"""The options of `loss` and `metrics` for each kind of target."""

Metrics = Mapping[str, Mapping[str, str]]


def check_targets(task: str, *, loss: str, metrics: Metrics, two_classes: bool = False) -> None:
    """Refuse losses and metrics for another kind of target, which would fail late or, worse, give numbers.

    Args:
        task: Kind of the targets the data set has.
        loss: Path of the loss.
        metrics: Path of every metric, by split and name.
        two_classes: Whether the data set has two classes, and can give them as one yes or no, too.

    Raises:
        UserError: The loss or a metric does not suit the targets; one report about both.
    """
    suits = LOSS_TASKS.get(loss, (task,))
    strangers = [
        (f"metrics.{split}.{name}", path, needs)
        for split, named in metrics.items()
        for name, path in named.items()
        if "/" not in name and (needs := _needed(path, task)) != task  # of one output of several nothing is known
    ]
    fix = "a task class of your own (trainer.task._target_) that knows these targets"
    if task in OPTIONS:
        suited = zip(("loss", "metrics"), OPTIONS[task], (task not in suits, bool(strangers)), strict=True)
        fix = " ".join(f"{group}={option}" for group, option, wrong in suited if wrong)
    if two_classes and ("binary" in suits or any(needs == "binary" for *_, needs in strangers)):
        fix += "; or, with one output, data.dataset.binary=true loss=bce_with_logits metrics=binary"
    errors = Problems()
    if task not in suits:
        what = f"this loss is for {' or '.join(suits)} targets; the data set has {task} targets"
        errors.append(UserError(what, key="loss", received=loss, fix=fix))
    if strangers:
        key, path, needs = strangers[0]
        more = f" (and {len(strangers) - 1} more)" if len(strangers) > 1 else ""
        what = f"this metric is for {needs} targets; the data set has {task} targets{more}"
        errors.append(UserError(what, key=key, received=path, fix=fix))
    errors.raise_any()


def _needed(path: str, task: str) -> str:
    needs = next((needs for start, needs in METRIC_TASKS.items() if path.startswith(start)), task)
    each = needs == "multiclass" and task in ("segmentation", "tagging")  # they take a class for each place, too
    return task if each else needs


def check_monitor(monitor: str, *, splits: Collection[str]) -> None:
    """Refuse to monitor a value of a split that there is not.

    Raises:
        UserError: There are no validation rows, or no such further set.
    """
    split = monitor.partition("/")[0]
    if split not in splits:
        what, key = f"there is no {'validation' if split == 'val' else split} split to take it from", "metrics.monitor"
        raise UserError(what, key=key, received=monitor, fix="data.split.val=0.1, or metrics.monitor=train/loss")


_ALIKE = ("task", "input_shape", "class_names", "num_classes", "vocabulary", "target_scale", "weighted")
"""What a further set has in common with the training set."""


def check_alike(info: DataInfo, other: DataInfo) -> None:
    """Refuse a set that a model of some data cannot be measured on; it may have the first of its classes only."""
    if other.class_names and other.class_names == info.class_names[: len(other.class_names)]:
        other = replace(other, class_names=info.class_names, num_classes=info.num_classes)
    wrong = [name for name in _ALIKE if getattr(info, name) != getattr(other, name)]
    if wrong:
        here, there = (", ".join(f"{name} {getattr(one, name)}" for name in wrong)[:300] for one in (info, other))
        raise UserError("the set is not as the training set is", key="data.dataset", expected=here, received=there)


def check_hooks(callback: Any, *, key: str) -> None:
    """Refuse a callback with a hook that nothing would ever call.

    Raises:
        UserError: It has a method `on_...` that is none of the hooks.
    """
    hooks = [name for name in dir(Callback) if name.startswith("on_")]
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in hooks and callable(getattr(type(callback), name)):
            raise UserError(
                f"{type(callback).__name__}.{name} would never be called: there is no such hook",
                key=key,
                received=name,
                choices=hooks,
                fix=f"rename it; a method that is no hook is better named _{name}",
                family="wrong-value",
            )
