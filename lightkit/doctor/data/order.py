"""What targets are, and what the order of rows means: a series in time, rows sorted by their targets, splits cut so.

Shapes in this file: N rows, F features, C classes, L labels of a row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.data import DataInfo
from lightkit.data.row_facts import row_times
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding, Status, sized

ORDER, DRIFT, SIZES, TIMES = "row order", "target drift", "size of splits", "order of time"
_LATER = 0.1
"""Share of training rows that are later than half of the rows of a split from which on the future tells the past."""
_SHIFT, _APART = 0.15, 0.3
"""Share of the targets by which splits differ in more than chance and a little, and by which sorted rows are apart."""
_TELLS, _ALIKE = 0.5, 0.5
"""From which on the place of a row tells of its target, and rows are like the next one."""
_FEWEST_ROWS, _MOST_COLUMNS, _NEAR = 50, 64, 3
_NONE, _FEW = 5, 20
"""Rows of a split from which its metrics are chance, and from which they are coarse."""
_BINS = 32
_DATE_NAME = re.compile(r"(^|[_ .-])(date|time|timestamp|datetime|created|updated|year|month|day)", re.IGNORECASE)


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Look at how the rows lie in the data set, and at how the splits are cut from it."""
    yield from find_small_splits(run.sample)
    yield from find_order(run.sample)
    yield from find_later_rows(run.sample, run.cfg.data.split.time)


def find_later_rows(sample: DataSample, time: str | None) -> Iterator[Finding]:
    """Find training rows that are later than rows of validation and test.

    Args:
        sample: The rows.
        time: What names the time of each row, see `lightkit.data.row_facts.row_times`.
    """
    with suppress(UserError):  # nothing tells it
        times, rows = row_times(sample.data.source, time), sample.data.rows
        for name in sample.splits[1:]:
            share = float((times[rows["train"]] > times[rows[name]].median()).float().mean())
            measured = f"{share:.0%} of the training rows are later than half of the rows of {name}"
            why = "what comes is told by what came after it, which nobody knows when the model is used"
            status: Status = "warning" if share >= _LATER else "ok"
            yield Finding(TIMES, status, measured, why, "data.split.by", "data.split.by=time", {"later": share})


def find_small_splits(sample: DataSample) -> Iterator[Finding]:
    """Find splits of so few rows that their metrics are chance."""
    counts = {name: len(sample.data.rows[name]) for name in sample.splits if name != "train"}
    if not counts or min(counts.values()) >= _FEW:
        return
    name = min(counts, key=lambda each: counts[each])
    measured = f"{name} has {sized(counts[name], 'row')}, train {len(sample.data.rows['train']):,}"
    why = f"one row more or less that is right changes the score by {1 / counts[name]:.0%}: what it tells is chance"
    key = f"data.split.{name}"
    fix = f"data.split.{name}=0.2, or folds where rows are few (data.split.by=fold)"
    yield Finding(SIZES, "warning" if counts[name] < _NONE else "note", measured, why, key, fix, counts)


def find_order(sample: DataSample) -> Iterator[Finding]:
    """Say what the order of the rows means, and whether splits have other targets than training for another reason."""
    info, train = sample.data.info, sample.targets("train")
    others = {name: y for name in sample.splits if name != "train" and (y := sample.targets(name)) is not None}
    if train is None or not others or info.task in ("custom", "language_modeling"):
        for name in (ORDER, DRIFT):
            yield Finding(name, "skipped", "there are no targets of several splits to compare")
        return
    limits = {name: target_gap(train, y, info) for name, y in others.items()}
    gaps = {name: gap for name, (gap, _) in limits.items()}
    drifted = [name for name, (gap, limit) in limits.items() if gap >= _SHIFT and gap > limit]
    order = _order_finding(sample, gaps, drifted)
    yield order
    measured = "share of the targets by which a split differs from train: "
    measured += ", ".join(f"{name} {gap:.0%}" for name, gap in gaps.items())
    explained = order.status in ("note", "warning")
    measured += ", which follows from the order of the rows" if explained else ""
    status: Status = "warning" if drifted and not explained else "ok"
    why = "training and judging happen on different mixtures"
    key, numbers = "data.split.by", {f"{name}_gap": gap for name, gap in gaps.items()}
    fix = f"{key}={'random' if info.task == 'regression' else 'stratified'}"
    yield Finding(DRIFT, status, measured, why, key, fix, numbers)


def _order_finding(sample: DataSample, gaps: dict[str, float], drifted: list[str]) -> Finding:
    """Say whether rows are sorted or follow each other in time, and whether a split that is cut from them is right."""
    y, cut = goal_of(sample), cut_splits(sample)
    if y is None or len(y) < _FEWEST_ROWS:
        return Finding(ORDER, "skipped", "there are too few rows, or no targets of numbers to compare")
    share = explained_by(sample.train.rows.double(), y)
    measured, numbers = f"the place of a row in the data set explains {share:.0%} of its target", {"explained": share}
    if not cut:
        drawn = f"; rows of {' and '.join(gaps)} lie between those of train"
        return Finding(ORDER, "ok", measured + (drawn if share >= _TELLS else ""), numbers=numbers)
    if is_series(sample):
        are = "are" if len(cut) > 1 else "is"
        measured = f"rows follow each other in time, and {' and '.join(cut)} {are} cut from it"
        why = "what changes in time is judged as it will be in use, where new rows come later, too: keep the order"
        if any(name in drifted for name in cut):
            measured += f"; their targets differ from train by {max(gaps[name] for name in cut):.0%}"
            return Finding(ORDER, "note", measured, why, numbers=numbers)
        return Finding(ORDER, "ok", measured, numbers=numbers)
    if share < _TELLS or gaps.get(cut[0], 0.0) < _APART:
        return Finding(ORDER, "ok", measured, numbers=numbers)
    measured = f"{measured}, and {cut[0]} is cut from one end"
    why = "the rows are sorted, so training and judging see different targets"
    fix = "data.split.by=random, or stratified"
    return Finding(ORDER, "warning", measured, why, "data.split.by", fix, numbers | {"cut": cut})


def cut_splits(sample: DataSample) -> list[str]:
    """Return the splits whose rows all lie before, or all behind, those of training."""
    rows = sample.data.rows
    low, high = rows["train"].min(), rows["train"].max()
    return [name for name in sample.splits if name != "train" and (rows[name].min() > high or rows[name].max() < low)]


def is_series(sample: DataSample) -> bool:
    """Tell whether rows beside each other are alike as those of a series are, and are not sorted.

    A date that grows from row to row says so; otherwise rows are alike where some feature or the target hardly changes
    from a row to the next one, though none of them only grows or only falls.
    """
    train, y = sample.train, goal_of(sample)
    order = train.rows.argsort()
    if len(order) < _FEWEST_ROWS or float(train.rows[order].diff().float().median()) > _NEAR:
        return False
    likeness = list[float | None]()
    for name, column in _features(sample, order):
        steps = column.diff()
        if bool((steps != 0).any()) and bool((steps >= 0).all() | (steps <= 0).all()):
            if is_date(name, column):
                return True
            # What numbers the rows grows by the same each time.
            if float(steps.std()) > 1e-3 * float(steps.abs().mean()):
                return False
        else:
            likeness.append(_likeness(column))
    if y is not None:
        goal = y[order] if y.ndim == 1 else y[order][:, 0]
        likeness.append(_likeness(goal.double()) if y.is_floating_point() else _sameness(goal))
    known = [each for each in likeness if each is not None]
    return len(known) == len(likeness) and max(known, default=0.0) >= _ALIKE


def _features(sample: DataSample, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield features, or numbers that describe an input, in the order of the rows; of many some."""
    train, table = sample.train, sample.is_table
    columns = sample.unscaled(train.x) if table and train.x is not None else train.described
    if columns is None or not columns.is_floating_point():
        return
    names = sample.columns() if table else [""] * columns.shape[1]
    known = order[order < len(columns)]
    for number in range(0, columns.shape[1], -(-columns.shape[1] // _MOST_COLUMNS)):
        yield names[number], columns[known, number].double()


def _likeness(values: Tensor) -> float | None:
    """Return how like the next one numbers are, 0 by chance, 1 where they hardly change; None where they are sorted."""
    steps = values.diff()
    if bool((steps >= 0).all() | (steps <= 0).all()):
        return None
    return 1 - float(steps.square().mean() / (2 * values.var()).clamp(min=1e-12))


def _sameness(classes: Tensor) -> float | None:
    """Return the same of classes."""
    shares = classes.bincount().double() / len(classes)
    changes, chance = int((classes.diff() != 0).sum()), float(shares.square().sum())
    if changes <= int((shares > 0).sum()) - 1:
        return None
    return (1 - changes / (len(classes) - 1) - chance) / max(1 - chance, 1e-9)


def goal_of(sample: DataSample) -> Tensor | None:
    """Return one target a row that was read: classes, or fractional numbers; None where there is none such."""
    y, task = sample.train.y, sample.data.info.task
    if y is None or task not in ("multiclass", "binary", "multilabel", "regression"):
        return None
    if task == "multiclass":
        return y.to(torch.int64) if y.ndim == 1 else None
    y = y.reshape(len(y), -1)
    return y[:, 0].to(torch.int64) if task == "binary" else y.to(torch.float64)


def explained_by(column: Tensor, y: Tensor) -> float:
    """Return how much of the target one feature explains on rows held out, 0 to 1.

    It answers in two ways, of which the better one counts: by what is usual among rows with the same value (or in the
    same piece of its range), and by the rows with the nearest values.
    """
    values = column.to(torch.float64).contiguous()
    distinct = values.unique()
    if len(distinct) < 2:
        return 0.0
    fit = torch.rand(len(y), generator=torch.Generator().manual_seed(mix("doctor", "halves"))) < 0.5
    goal = y if y.is_floating_point() else functional.one_hot(y).to(torch.float64)
    known, held_out = goal[fit], y[~fit]
    answers = [_by_piece(values, distinct, fit, known)]
    if len(distinct) > _BINS:
        answers.append(_by_neighbours(values, fit, known))
    return max(0.0, *(_share_explained(answer, held_out, known) for answer in answers))


def _by_piece(values: Tensor, distinct: Tensor, fit: Tensor, known: Tensor) -> Tensor:
    """Answer by the mean target of the fitted rows of a piece, all of which have as many rows."""
    if len(distinct) > _BINS:
        edges = values.quantile(torch.linspace(0, 1, _BINS + 1, dtype=torch.float64)[1:-1]).unique()
    else:
        edges = (distinct[1:] + distinct[:-1]) / 2
    pieces, count = torch.bucketize(values, edges), len(edges) + 1
    total = torch.bincount(pieces[fit], minlength=count).to(known)[:, None]
    sums = known.new_zeros(count, known.shape[1]).index_add_(0, pieces[fit], known)
    means = torch.where(total > 0, sums / total.clamp(min=1), known.mean(0))
    return means[pieces[~fit]]


def _by_neighbours(values: Tensor, fit: Tensor, known: Tensor) -> Tensor:
    """Answer by the mean target of the fitted rows with the nearest values."""
    ordered, order = values[fit].sort()
    place = torch.searchsorted(ordered, values[~fit].contiguous())
    window = (place[:, None] + torch.arange(-2, 2)).clamp(0, len(ordered) - 1)
    return known[order][window].mean(1)


def _share_explained(answer: Tensor, held_out: Tensor, known: Tensor) -> float:
    """Return by how much answers are better than the best one that is the same for all, 1 where they are right."""
    if not held_out.is_floating_point():
        right = float((answer.argmax(1) == held_out).double().mean())
        usual = float((known.mean(0).argmax() == held_out).double().mean())
        return (right - usual) / max(1 - usual, 1e-9) if usual < 1 else 0.0
    rest, variance = (held_out - answer).square().mean(0), (held_out - known.mean(0)).square().mean(0)
    varied = variance > 1e-12
    return float((1 - rest / variance.clamp(min=1e-12))[varied].max()) if varied.any() else 0.0


def whole_numbers(column: Tensor) -> bool:
    """Tell whether all numbers are whole ones, up to what 32 bits hold."""
    return bool(((column - column.round()).abs() <= 1e-3 * column.abs().clamp(min=1)).all())


def is_date(name: str, column: Tensor) -> bool:
    """Tell whether a column is called a date, or its numbers look like some: 20240131, or seconds since 1970."""
    if _DATE_NAME.search(name) and "=" not in name:
        return True
    values = column.double()
    low, high = float(values.min()), float(values.max())
    if low == high or not whole_numbers(column):
        return False
    if low >= 19_000_101 and high <= 21_001_231:
        month, day = (values / 100).floor() % 100, values % 100
        # Rounded: 32 bits do not hold the last digit.
        return float(((month <= 13) & (day <= 33)).double().mean()) > 0.95
    return low > 3e8 and high < 4.2e9 and high - low < 2e9


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
    if y.ndim > 2:  # masks: a row has the classes of its pixels
        return torch.stack([(y == number).flatten(1).any(1).sum() for number in range(classes)])
    return (y.reshape(len(y), -1) > 0.5).sum(0)


def class_names(names: Sequence[str], count: int) -> list[str]:
    """Return the name of each class, or its number where the data set names none."""
    return list(names) if len(names) == count else [str(number) for number in range(max(count, 1))]
