"""What targets are: how they are spread, how much one number tells of them, and whether numbers are dates.

Shapes in this file: N rows, F features, C classes, L labels of a row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.data import DataInfo
from lightkit.doctor.data.sample import DataSample

_BINS = 32
_DATE_NAME = re.compile(r"(^|[_ .-])(date|time|timestamp|datetime|created|updated|year|month|day)", re.IGNORECASE)


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
    known, asked = goal[fit], y[~fit]
    answers = [_by_piece(values, distinct, fit, known)]
    if len(distinct) > _BINS:
        answers.append(_by_neighbours(values, fit, known))
    return max(0.0, *(_share_explained(answer, asked, known) for answer in answers))


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


def _share_explained(answer: Tensor, asked: Tensor, known: Tensor) -> float:
    """Return by how much answers are better than the best one that is the same for all, 1 where they are right."""
    if not asked.is_floating_point():
        right = float((answer.argmax(1) == asked).double().mean())
        usual = float((known.mean(0).argmax() == asked).double().mean())
        return (right - usual) / max(1 - usual, 1e-9) if usual < 1 else 0.0
    rest, variance = (asked - answer).square().mean(0), (asked - known.mean(0)).square().mean(0)
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
    return (y.reshape(len(y), -1) > 0.5).sum(0)


def class_names(names: Sequence[str], count: int) -> list[str]:
    """Return the name of each class, or its number where the data set names none."""
    return list(names) if len(names) == count else [str(number) for number in range(max(count, 1))]
