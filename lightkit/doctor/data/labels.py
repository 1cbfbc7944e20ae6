"""Whether targets can be learned: in range, all classes there, no two answers to one question.

Shapes in this file: N rows, C classes, L labels of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.doctor.data.balance import class_names, count_rows, find_imbalance
from lightkit.doctor.data.order import cut_splits, is_series
from lightkit.doctor.data.sample import DataSample, problems
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

LABELS, CONFLICTS = "labels", "conflicting labels"
_FEW_ROWS = 5


def check(patient: Patient) -> Iterator[Finding]:
    """Look at the targets of all splits."""
    sample = patient.sample
    yield from find_unreadable(sample)
    yield from find_wrong_labels(sample)
    yield from find_imbalance(sample, patient.cfg)
    yield from find_conflicts(sample)


def find_unreadable(sample: DataSample) -> Iterator[Finding]:
    """Report samples that could not be read, or that the data set itself calls wrong."""
    for split, told in problems(sample):
        error = sample[split].problem
        user = error if isinstance(error, UserError) else None
        measured = f"reading {split} ended: {user.what if user else told}"
        why = "a run would end at this sample, perhaps hours later"
        fix = (user.fix if user else None) or "mend or leave out the sample"
        yield Finding(LABELS, "error", measured, why, "data.dataset", fix, {"split": split})


def find_wrong_labels(sample: DataSample) -> Iterator[Finding]:
    """Find labels out of range, and classes or labels that the training split lacks."""
    info, train = sample.data.info, sample.targets("train")
    if train is None or info.task in ("custom", "language_modeling"):
        yield Finding(LABELS, "skipped", f"what the targets of a {info.task} task mean is known to the task alone")
        return
    if info.task == "regression":
        yield _constant_targets(train)
        return
    count, names = max(info.num_classes, 1), class_names(info.class_names, info.num_classes)
    wrong = _out_of_range(sample)
    if wrong is not None:
        yield wrong
        return
    present = count_rows(train, count)
    lacking = [number for number in range(count) if not present[number]]
    elsewhere = [name for name in sample.splits if name != "train"]
    others = [y for name in elsewhere if (y := sample.targets(name)) is not None]
    asked = {number for y in others for number in count_rows(y, count).nonzero()[:, 0].tolist()}
    if info.task == "multiclass" and len(train) < 5 * count and len(train) < len(sample.data.rows["train"]):
        yield Finding(LABELS, "skipped", f"{len(train):,} rows are too few to see {count:,} classes in")
    elif not lacking:
        few = [names[number] for number in range(count) if present[number] < _FEW_ROWS]
        told = f", {len(few)} of them with fewer than {_FEW_ROWS}: {_list(few)}" if few else ""
        measured = f"{count:,} {'labels' if info.task == 'multilabel' else 'classes'}, all with training rows{told}"
        why = "from so few rows a class is not learned, and its score is chance" if few else ""
        key = "data.split" if few else ""
        fix = "more rows of these classes, or leave the classes out" if few else ""
        yield Finding(LABELS, "warning" if few else "ok", measured, why, key, fix, {"classes": count, "few": few})
    else:
        in_time = bool(cut_splits(sample)) and is_series(sample)
        yield _lacking_finding(lacking, names, is_asked=bool(asked & {*lacking}), in_time=in_time)


def _lacking_finding(lacking: list[int], names: Sequence[str], *, is_asked: bool, in_time: bool) -> Finding:
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
        fix="smaller data.split.val and data.split.test, so that training lasts longer, or leave the classes out"
        if is_asked and in_time
        else "data.split.by=stratified"
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
            measured = (
                f"{int(bad.sum()):,} labels of {split} are not {expected}: {_list([f'{value:g}' for value in values])}"
            )
            why = "the loss refuses them, on a GPU with an error that names another line"
            fix = "number the classes from 0 without gaps" if single else "give 0 or 1 for each label"
            numbers = {"split": split, "wrong": int(bad.sum())}
            return Finding(LABELS, "error", measured, why, "data.dataset", fix, numbers)
    return None


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
    why = "no network can be right about both; labels are wrong, or what tells rows apart is missing" if bad else ""
    fix = "look at these rows, and choose one label or add the feature that differs" if bad else ""
    yield Finding(CONFLICTS, "warning" if bad else "ok", measured, why, "data.dataset" if bad else "", fix, numbers)


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


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(str, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
