"""How targets are distributed: classes that are too rare, and splits that differ.

Shapes in this file: N rows, C classes, L labels of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding

BALANCE, DRIFT = "class balance", "target drift"
_RARE_RATIO = 20.0
"""How many times rarer than the most frequent class a class is to be rare."""
_RARE_SHARE = 0.02
_AWARE = ("f1", "auroc", "recall", "precision", "balanced", "kappa", "mcc", "matthews", "average_precision", "loss")
"""Words of metrics that do not reward answering the most frequent class each time."""
_SHIFT = 0.15
"""Total variation, or largest gap between distributions, from which splits differ in more than chance and a little."""


def find_imbalance(sample: DataSample, cfg: DictConfig) -> Iterator[Finding]:
    """Find classes or labels so rare that a network does well without them."""
    info, y = sample.data.info, sample.targets("train")
    if y is None or info.task not in ("multiclass", "binary", "multilabel"):
        yield Finding(BALANCE, "skipped", "there are no classes to count")
        return
    counts, names = count_rows(y, max(info.num_classes, 1)), class_names(info.class_names, info.num_classes)
    total = len(y)
    if info.task == "multiclass":
        there = counts[counts > 0]
        if len(there) < 2:
            measured, why = "all training rows have one class", "one answer is always right, so nothing is learnt"
            fix = "data.split.by=stratified where other rows have other classes; else the targets are read wrongly"
            yield Finding(BALANCE, "error", measured, why, "data.split.by", fix)
            return
        rare, most = float(there.min()) / total, float(there.max()) / total
        rarest = names[int(torch.where(counts > 0, counts, counts.max() + 1).argmin())]
        is_bad = most / rare >= _RARE_RATIO
    else:
        shares = counts.double() / total
        minority = torch.minimum(shares, 1 - shares)
        at = int(minority.argmin())
        rare, rarest = float(minority[at]), names[at]
        most = 1 - rare
        is_bad = rare < _RARE_SHARE
    numbers = {"rarest": rarest, "share": rare, "most_frequent": most}
    measured = f"the rarest is {rarest!r} with {rare:.1%} of the training rows, and one answer is right in {most:.1%}"
    if info.task != "multiclass":
        measured = f"the most uneven label is {rarest!r}: one answer is right in {most:.1%} of the training rows"
    if not is_bad:
        yield Finding(BALANCE, "ok", measured, numbers=numbers)
        return
    monitor, answered = str(cfg.metrics.monitor), _answers_imbalance(cfg)
    yield Finding(
        BALANCE,
        "note" if answered else "warning",
        measured,
        why=f"{monitor} can look good although rare classes are never found",
        key="metrics.monitor" if not answered else "",
        fix="judge by a metric that counts classes alike (metrics.monitor=val/f1, val/auroc), and weigh the loss "
        "(loss.weight for cross entropy, loss.pos_weight for binary targets, loss=focal)",
        numbers=numbers,
    )


def _answers_imbalance(cfg: DictConfig) -> bool:
    """Tell whether a run does something about rare classes: in its loss, or in what it is judged by."""
    loss = cfg.loss
    weighs = loss.get("weight") is not None or loss.get("pos_weight") is not None or "ocal" in str(loss.get("_target_"))
    name = str(cfg.metrics.monitor).rpartition("/")[2].lower()
    return weighs or any(word in name for word in _AWARE)


def find_drift(sample: DataSample) -> Iterator[Finding]:
    """Find a validation or test split whose targets are distributed otherwise than those of training."""
    info, train = sample.data.info, sample.targets("train")
    others = [name for name in sample.splits if name != "train"]
    if train is None or not others or info.task in ("custom", "language_modeling"):
        yield Finding(DRIFT, "skipped", "there are no targets of several splits to compare")
        return
    gaps = {
        name: _gap(train, y, info.task, info.num_classes) for name in others if (y := sample.targets(name)) is not None
    }
    numbers = {f"{name}_gap": gap for name, (gap, _) in gaps.items()}
    told = ", ".join(f"{name} {gap:.0%}" for name, (gap, _) in gaps.items())
    measured = f"share of the targets by which a split differs from train: {told}"
    bad = any(gap >= _SHIFT and gap > limit for gap, limit in gaps.values())
    yield Finding(
        DRIFT,
        "warning" if bad else "ok",
        measured,
        why="training and judging happen on different mixtures; rows may be sorted" if bad else "",
        key="data.split.by" if bad else "",
        fix=("data.split.by=random" if info.task == "regression" else "data.split.by=stratified") if bad else "",
        numbers=numbers,
    )


def _gap(one: Tensor, other: Tensor, task: str, classes: int) -> tuple[float, float]:
    """Return how far apart the targets of two splits are, 0 to 1, and how far chance may put them apart."""
    n, m = len(one), len(other)
    noise = math.sqrt((n + m) / max(n * m, 1))
    if task == "regression":
        a, b = (y.reshape(len(y), -1)[:, 0].double().sort().values for y in (one, other))
        both = torch.cat([a, b])
        below = [torch.searchsorted(part, both, right=True).double() / len(part) for part in (a, b)]
        return float((below[0] - below[1]).abs().max()), 2.5 * noise
    a, b = (count_rows(y, max(classes, 1)).double() / len(y) for y in (one, other))
    if task == "multiclass":
        return float((a - b).abs().sum()) / 2, 1.5 * noise * math.sqrt(max(classes, 2) / 2)
    return float((a - b).abs().max()), 2.5 * noise


def count_rows(y: Tensor, classes: int) -> Tensor:
    """Count the rows of each class, or those that have each label, `(C,)` or `(L,)`."""
    if y.ndim == 1 and not y.is_floating_point():
        return torch.bincount(y.to(torch.int64), minlength=classes)
    return (y.reshape(len(y), -1) > 0.5).sum(0)


def class_names(names: Sequence[str], count: int) -> list[str]:
    """Return the name of each class, or its number where the data set names none."""
    return list(names) if len(names) == count else [str(number) for number in range(max(count, 1))]
