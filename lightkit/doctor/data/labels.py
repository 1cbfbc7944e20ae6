"""Whether targets can be learned: in range, all classes there, no two answers to one question.

Shapes in this file: N rows, C classes, L labels of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.order import class_names, count_rows, cut_splits, is_series
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding, Status, named

LABELS, BALANCE, CONFLICTS = "labels", "class balance", "conflicting labels"
_FEW_ROWS, _LISTED = 5, 8
_LONGEST = 200
"""Most characters of an error."""
_RARE_RATIO = 20.0
"""How many times rarer than the most frequent class a class is to be rare."""
_RARE_SHARE = 0.02
_AWARE = ("f1", "auroc", "recall", "precision", "balanced", "kappa", "mcc", "matthews", "average_precision", "loss")
"""Words of metrics that do not reward answering the most frequent class each time."""


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Look at the targets of all splits."""
    sample = run.sample
    yield from find_unreadable(sample)
    yield from find_wrong_labels(sample)
    yield from find_imbalance(sample, run.cfg)
    yield from find_conflicts(sample)


def find_unreadable(sample: DataSample) -> Iterator[Finding]:
    """Report samples that could not be read, or that the data set itself calls wrong."""
    for split in sample.splits:
        error = sample[split].problem
        if error is not None:
            user = error if isinstance(error, UserError) else None
            reason = user.what if user else in_short(error)
            reason = reason if user or len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
            measured = f"reading {split} ended: {reason}"
            why = "a run would end at this sample, perhaps hours later"
            fix = (user.fix if user else None) or "mend or leave out the sample"
            yield Finding(LABELS, "error", measured, why, "data.dataset", fix, {"split": split})


def find_wrong_labels(sample: DataSample) -> Iterator[Finding]:
    """Find labels out of range, and classes or labels that the training split lacks."""
    info, train = sample.data.info, sample.targets("train")
    if train is None or info.task in ("custom", "language_modeling", "tagging"):
        yield Finding(LABELS, "skipped", f"what the targets of a {info.task} task mean is known to the task alone")
        return
    if info.task == "regression":
        yield _constant_targets(train)
        return
    wrong = next((wrong for split in sample.splits if (wrong := _out_of_range(sample, split))), None)
    if wrong is not None:
        yield wrong
        return
    count, names = max(info.num_classes, 1), class_names(info.class_names, info.num_classes)
    present = count_rows(train, count)
    lacking = [number for number in range(count) if not present[number]]
    if info.task == "multiclass" and len(train) < 5 * count and len(train) < len(sample.data.rows["train"]):
        yield Finding(LABELS, "skipped", f"{len(train):,} rows are too few to see {count:,} classes in")
    elif lacking:
        yield _lacking_finding(sample, lacking, names)
    else:
        few = [names[number] for number in range(count) if present[number] < _FEW_ROWS]
        which = f", {len(few)} of them with fewer than {_FEW_ROWS}: {named(few, _LISTED)}" if few else ""
        measured = f"{count:,} {'labels' if info.task == 'multilabel' else 'classes'}, all with training rows{which}"
        why = "from so few rows a class is not learned, and its score is chance"
        fix, numbers = "more rows of these classes, or leave the classes out", {"classes": count, "few": few}
        yield Finding(LABELS, "warning" if few else "ok", measured, why, "data.split", fix, numbers)


def _lacking_finding(sample: DataSample, lacking: list[int], names: Sequence[str]) -> Finding:
    others = [y for name in sample.splits if name != "train" and (y := sample.targets(name)) is not None]
    wanted = {number for y in others for number in count_rows(y, len(names)).nonzero()[:, 0].tolist()}
    from_one, numbers = lacking == [0], {"lacking": lacking}
    measured = f"{len(lacking)} of {len(names)} classes have no training row: "
    measured += named([names[number] for number in lacking], _LISTED)
    measured += "; labels that count from 1 leave the first class empty" if from_one else ""
    if not wanted & {*lacking}:
        why = "the network spends outputs on classes that never occur"
        fix = "count labels from 0" if from_one else "leave the classes out, or add rows of them"
        return Finding(LABELS, "warning", measured, why, "data.dataset", fix, numbers)
    why, fix = "they are asked for in validation or test and cannot be learned", "data.split.by=stratified"
    if cut_splits(sample) and is_series(sample):
        fix = "smaller data.split.val and data.split.test, so that training lasts longer, or leave the classes out"
    return Finding(LABELS, "error", measured, why, "data.split.by", fix, numbers)


def _out_of_range(sample: DataSample, split: str) -> Finding | None:
    """Return the finding of a class number that does not exist, or of a label other than 0 and 1."""
    info, y = sample.data.info, sample.targets(split)
    if y is None:
        return None
    single = info.task in ("multiclass", "segmentation")
    bad = (y < 0) | (y >= info.num_classes) if single else (y != 0) & (y != 1)
    if info.ignore_index is not None:
        bad &= y != info.ignore_index
    if not bad.any():
        return None
    values = named([f"{value:g}" for value in y[bad].flatten().unique().tolist()], _LISTED)
    expected, count = f"0 to {info.num_classes - 1}" if single else "0 or 1", int(bad.sum())
    measured = f"{count:,} labels of {split} are not {expected}: {values}"
    why = "the loss refuses them, on a GPU with an error that names another line"
    fix = "number the classes from 0 without gaps" if single else "give 0 or 1 for each label"
    return Finding(LABELS, "error", measured, why, "data.dataset", fix, {"split": split, "wrong": count})


def _constant_targets(y: Tensor) -> Finding:
    columns = y.reshape(len(y), -1).double()
    spread, width = columns.std(0), columns.shape[1]
    constant = int((spread <= 1e-9 * columns.abs().amax(0).clamp(min=1e-12)).sum())
    low, high = float(columns.min()), float(columns.max())
    measured = f"targets lie between {low:g} and {high:g}"
    measured += f"; {constant} of {width} are the same in every training row" if constant else ""
    status: Status = "error" if constant == width else "warning" if constant else "ok"
    why, numbers = "there is nothing to learn about a target that never changes", {"low": low, "high": high}
    fix = "choose another target"
    return Finding(LABELS, status, measured, why, "data.dataset", fix, numbers | {"constant": constant})


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
    answered = _answers_imbalance(cfg)
    status: Status = "ok" if not is_bad else "note" if answered else "warning"
    why = f"{cfg.metrics.monitor} can look good although rare classes are never found"
    fix = (
        "judge by a metric that counts classes alike (metrics.monitor=val/f1, val/auroc), and weigh the loss "
        "(loss.weight for cross entropy, loss.pos_weight for binary targets, loss=focal)"
    )
    yield Finding(BALANCE, status, measured, why, "" if answered else "metrics.monitor", fix, numbers)


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
    coarse = sample.chance_of_equals
    if len(values) <= max(1, len(y) // 10) and len(y) >= 20 and coarse < 0.5:
        measured = f"{len(y):,} training rows have only {len(values):,} different inputs"
        why, fix = "what differs between rows does not reach the network", "look at what `__getitem__` gives: "
        status: Status = "error" if len(values) == 1 else "warning"
        numbers["different"] = len(values)
        yield Finding(CONFLICTS, status, measured, why, "data.dataset", f"{fix}`lightkit show data`", numbers)
        return
    measured = f"{disagree:,} of {len(y):,} training rows ({share:.1%}) have the input of a row with another label"
    if twins <= 3 * coarse and disagree:
        measured += f"; such coarse features make {coarse:.1%} of them equal by chance"
    bad = share >= 0.01 and disagree >= 4 and twins > 3 * coarse
    why = "no network can be right about both; labels are wrong, or what tells rows apart is missing"
    fix = "look at these rows, and choose one label or add the feature that differs"
    yield Finding(CONFLICTS, "warning" if bad else "ok", measured, why, "data.dataset", fix, numbers)
