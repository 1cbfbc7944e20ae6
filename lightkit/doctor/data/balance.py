"""How targets are distributed: classes that are too rare, and how far those of two splits are apart.

Shapes in this file: N rows, C classes, L labels of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.data import DataInfo
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding

BALANCE = "class balance"
_RARE_RATIO = 20.0
"""How many times rarer than the most frequent class a class is to be rare."""
_RARE_SHARE = 0.02
_AWARE = ("f1", "auroc", "recall", "precision", "balanced", "kappa", "mcc", "matthews", "average_precision", "loss")
"""Words of metrics that do not reward answering the most frequent class each time."""


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
    why = f"{monitor} can look good although rare classes are never found"
    key = "metrics.monitor" if not answered else ""
    fix = (
        "judge by a metric that counts classes alike (metrics.monitor=val/f1, val/auroc), and weigh the loss "
        "(loss.weight for cross entropy, loss.pos_weight for binary targets, loss=focal)"
    )
    yield Finding(BALANCE, "note" if answered else "warning", measured, why, key, fix, numbers)


def _answers_imbalance(cfg: DictConfig) -> bool:
    """Tell whether a run does something about rare classes: in its loss, or in what it is judged by."""
    loss = cfg.loss
    weighs = loss.get("weight") is not None or loss.get("pos_weight") is not None or "ocal" in str(loss.get("_target_"))
    name = str(cfg.metrics.monitor).rpartition("/")[2].lower()
    return weighs or any(word in name for word in _AWARE)


def target_gap(one: Tensor, other: Tensor, info: DataInfo) -> tuple[float, float]:
    """Return how far apart the targets of two splits are, 0 to 1, and how far chance may put them apart."""
    n, m = len(one), len(other)
    noise = math.sqrt((n + m) / max(n * m, 1))
    if info.task == "regression":
        a, b = (y.reshape(len(y), -1)[:, 0].double().sort().values for y in (one, other))
        both = torch.cat([a, b])
        below = [torch.searchsorted(part, both, right=True).double() / len(part) for part in (a, b)]
        return float((below[0] - below[1]).abs().max()), 2.5 * noise
    a, b = (count_rows(y, max(info.num_classes, 1)).double() / len(y) for y in (one, other))
    if info.task == "multiclass":
        return float((a - b).abs().sum()) / 2, 1.5 * noise * math.sqrt(max(info.num_classes, 2) / 2)
    return float((a - b).abs().max()), 2.5 * noise


def count_rows(y: Tensor, classes: int) -> Tensor:
    """Count the rows of each class, or those that have each label, `(C,)` or `(L,)`."""
    if y.ndim == 1 and not y.is_floating_point():
        return torch.bincount(y.to(torch.int64), minlength=classes)
    return (y.reshape(len(y), -1) > 0.5).sum(0)


def class_names(names: Sequence[str], count: int) -> list[str]:
    """Return the name of each class, or its number where the data set names none."""
    return list(names) if len(names) == count else [str(number) for number in range(max(count, 1))]
