"""Whether targets can be learned: in range, all classes there, none of them too rare, no two answers to one question.

Shapes in this file: N rows, C classes, L labels of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.doctor.data.sample import DataSample, problems
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

LABELS, BALANCE, CONFLICTS, DRIFT = "labels", "class balance", "conflicting labels", "target drift"
_RARE_RATIO = 20.0
"""How many times rarer than the most frequent class a class is to be rare."""
_RARE_SHARE = 0.02
_FEW_ROWS = 5
_AWARE = ("f1", "auroc", "recall", "precision", "balanced", "kappa", "mcc", "matthews", "average_precision", "loss")
"""Words of metrics that do not reward answering the most frequent class each time."""
_SHIFT = 0.15
"""Total variation, or largest gap between distributions, from which splits differ in more than chance and a little."""


def check(patient: Patient) -> Iterator[Finding]:
    """Look at the targets of all splits."""
    sample = patient.sample
    yield from find_unreadable(sample)
    yield from find_wrong_labels(sample)
    yield from find_imbalance(sample, patient.cfg)
    yield from find_conflicts(sample)
    yield from find_drift(sample)


def find_unreadable(sample: DataSample) -> Iterator[Finding]:
    """Report samples that could not be read, or that the data set itself calls wrong."""
    for split, told in problems(sample):
        error = sample[split].problem
        user = error if isinstance(error, UserError) else None
        yield Finding(
            LABELS,
            "error",
            f"reading {split} ended: {user.what if user else told}",
            why="a run would end at this sample, perhaps hours later",
            key="data.dataset",
            fix=(user.fix if user else None) or "mend or leave out the sample",
            numbers={"split": split},
        )


def find_wrong_labels(sample: DataSample) -> Iterator[Finding]:
    """Find labels out of range, and classes or labels that the training split lacks."""
    info, train = sample.data.info, sample.targets("train")
    if train is None or info.task in ("custom", "language_modeling"):
        yield Finding(LABELS, "skipped", f"what the targets of a {info.task} task mean is known to the task alone")
        return
    if info.task == "regression":
        yield _constant_targets(train)
        return
    count, names = max(info.num_classes, 1), _names(info.class_names, info.num_classes)
    wrong = _out_of_range(sample)
    if wrong is not None:
        yield wrong
        return
    present = _counts(train, count)
    lacking = [number for number in range(count) if not present[number]]
    elsewhere = [name for name in sample.splits if name != "train"]
    asked = {number for name in elsewhere for number in _seen(sample.targets(name), count)}
    if info.task == "multiclass" and len(train) < 5 * count and len(train) < len(sample.data.rows["train"]):
        yield Finding(LABELS, "skipped", f"{len(train):,} rows are too few to see {count:,} classes in")
    elif not lacking:
        few = [names[number] for number in range(count) if present[number] < _FEW_ROWS]
        told = f", {len(few)} of them with fewer than {_FEW_ROWS}: {_list(few)}" if few else ""
        yield Finding(
            LABELS,
            "warning" if few else "ok",
            f"{count:,} {'labels' if info.task == 'multilabel' else 'classes'}, all with training rows{told}",
            why="from so few rows a class is not learned, and its score is chance" if few else "",
            key="data.split" if few else "",
            fix="more rows of these classes, or leave the classes out" if few else "",
            numbers={"classes": count, "few": few},
        )
    else:
        yield _lacking_finding(lacking, names, is_asked=bool(asked & {*lacking}))


def _lacking_finding(lacking: list[int], names: Sequence[str], *, is_asked: bool) -> Finding:
    from_one = lacking == [0]
    hint = "; labels that count from 1 leave the first class empty" if from_one else ""
    return Finding(
        LABELS,
        "error" if is_asked else "warning",
        f"{len(lacking)} of {len(names)} classes have no training row: {_list([names[n] for n in lacking])}{hint}",
        why="they are asked for in validation or test and cannot be learned"
        if is_asked
        else "the network spends outputs on classes that never occur",
        key="data.split.by" if is_asked else "data.dataset",
        fix="data.split.by=stratified"
        if is_asked
        else "count labels from 0"
        if from_one
        else "leave the classes out, or add rows of them",
        numbers={"lacking": lacking},
    )


def _out_of_range(sample: DataSample) -> Finding | None:
    """Return the finding of a class number that does not exist, or of a label other than 0 and 1."""
    info = sample.data.info
    for split in sample.splits:
        y = sample.targets(split)
        if y is None:
            continue
        single = info.task == "multiclass"
        bad = (y < 0) | (y >= info.num_classes) if single else (y != 0) & (y != 1)
        if bad.any():
            values = y[bad].flatten().unique().tolist()
            expected = f"0 to {info.num_classes - 1}" if single else "0 or 1"
            return Finding(
                LABELS,
                "error",
                f"{int(bad.sum()):,} labels of {split} are not {expected}: {_list([f'{value:g}' for value in values])}",
                why="the loss refuses them, on a GPU with an error that names another line",
                key="data.dataset",
                fix="number the classes from 0 without gaps" if single else "give 0 or 1 for each label",
                numbers={"split": split, "wrong": int(bad.sum())},
            )
    return None


def find_imbalance(sample: DataSample, cfg: DictConfig) -> Iterator[Finding]:
    """Find classes or labels so rare that a network does well without them."""
    info, y = sample.data.info, sample.targets("train")
    if y is None or info.task not in ("multiclass", "binary", "multilabel"):
        yield Finding(BALANCE, "skipped", "there are no classes to count")
        return
    counts, names = _counts(y, max(info.num_classes, 1)), _names(info.class_names, info.num_classes)
    total = len(y)
    if info.task == "multiclass":
        there = counts[counts > 0]
        if len(there) < 2:
            yield Finding(BALANCE, "error", "all training rows have one class", key="data.split.by", fix="other data")
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


def find_conflicts(sample: DataSample) -> Iterator[Finding]:
    """Find equal inputs with different labels."""
    train, info = sample.train, sample.data.info
    if train.marks is None or train.y is None or info.task not in ("multiclass", "binary", "multilabel"):
        yield Finding(CONFLICTS, "skipped", "there are no labels of inputs to compare")
        return
    values, place, counts = train.marks.unique(return_inverse=True, return_counts=True)
    y = train.y.reshape(len(train.y), -1).to(torch.float64)
    repeated = counts[place] > 1
    at = place[:, None].expand_as(y)
    low = y.new_zeros(len(values), y.shape[1]).scatter_reduce(0, at, y, "amin", include_self=False)
    high = y.new_zeros(len(values), y.shape[1]).scatter_reduce(0, at, y, "amax", include_self=False)
    disagree = int((repeated & (low != high).any(1)[place]).sum())
    share, twins = disagree / len(y), float(repeated.float().mean())
    numbers = {"disagreeing": disagree, "share": share, "repeated": twins}
    measured = f"{disagree:,} of {len(y):,} training rows ({share:.1%}) have the input of a row with another label"
    if len(values) <= max(1, len(y) // 10) and len(y) >= 20 and sample.chance_of_equals < 0.5:
        yield Finding(
            CONFLICTS,
            "error" if len(values) == 1 else "warning",
            f"{len(y):,} training rows have only {len(values):,} different inputs",
            why="what differs between rows does not reach the network",
            key="data.dataset",
            fix="look at what `__getitem__` gives: `lightkit show data`",
            numbers=numbers | {"different": len(values)},
        )
        return
    coarse = sample.chance_of_equals
    if twins <= 3 * coarse and disagree:
        measured += f"; such coarse features make {coarse:.1%} of them equal by chance"
    bad = share >= 0.01 and disagree >= 4 and twins > 3 * coarse
    yield Finding(
        CONFLICTS,
        "warning" if bad else "ok",
        measured,
        why="no network can be right about both; labels are wrong, or what tells rows apart is missing" if bad else "",
        key="data.dataset" if bad else "",
        fix="look at these rows, and choose one label or add the feature that differs" if bad else "",
        numbers=numbers,
    )


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
    a, b = (_counts(y, max(classes, 1)).double() / len(y) for y in (one, other))
    if task == "multiclass":
        return float((a - b).abs().sum()) / 2, 1.5 * noise * math.sqrt(max(classes, 2) / 2)
    return float((a - b).abs().max()), 2.5 * noise


def _constant_targets(y: Tensor) -> Finding:
    columns = y.reshape(len(y), -1).double()
    spread, width = columns.std(0), columns.shape[1]
    constant = int((spread <= 1e-9 * columns.abs().amax(0).clamp(min=1e-12)).sum())
    low, high = float(columns.min()), float(columns.max())
    return Finding(
        LABELS,
        "error" if constant == width else "warning" if constant else "ok",
        f"targets lie between {low:g} and {high:g}"
        + (f"; {constant} of {width} are the same in every training row" if constant else ""),
        why="there is nothing to learn about a target that never changes" if constant else "",
        key="data.dataset" if constant else "",
        fix="choose another target" if constant else "",
        numbers={"low": low, "high": high, "constant": constant},
    )


def _counts(y: Tensor, classes: int) -> Tensor:
    """Count the rows of each class, or those that have each label, `(C,)` or `(L,)`."""
    if y.ndim == 1 and not y.is_floating_point():
        return torch.bincount(y.to(torch.int64), minlength=classes)
    return (y.reshape(len(y), -1) > 0.5).sum(0)


def _seen(y: Tensor | None, classes: int) -> list[int]:
    return [] if y is None else _counts(y, classes).nonzero()[:, 0].tolist()


def _names(names: Sequence[str], count: int) -> list[str]:
    return list(names) if len(names) == count else [str(number) for number in range(max(count, 1))]


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(str, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
