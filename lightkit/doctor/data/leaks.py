"""Features that know the answer: a copy of the target, the number or the date of a row.

Shapes in this file: N rows, F features, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient

LEAKS = "leaking features"
_KNOWS = 0.97
"""How much of what can be explained a single feature explains where it knows the answer."""
_RELATED = 0.3
"""The same, from which a number or a date of a row is related to the answer."""
_ORDERED = 0.99
"""Rank correlation with the row from which a feature counts rows."""
_BINS, _MOST_FEATURES, _FEWEST_ROWS = 32, 4096, 50
_TOLD = 256
"""Features that are looked at closely; of more, those that are most related to the target."""
_NUMBER_NAME = re.compile(r"(^|[_ .-])(id|uuid|guid|index|idx|key|rowid|number|nr|no)$|^unnamed", re.IGNORECASE)
_DATE_NAME = re.compile(r"(^|[_ .-])(date|time|timestamp|datetime|created|updated|year|month|day)", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    """Look for features that know the target."""
    yield from find_leaking_features(patient.sample)


def find_leaking_features(sample: DataSample) -> Iterator[Finding]:
    """Find features that predict the target alone, and such that number or date the rows."""
    x, y = sample.train.x, goal_of(sample)
    if x is None or y is None or not x.is_floating_point() or len(x) < _FEWEST_ROWS:
        yield Finding(LEAKS, "skipped", _why_not(sample))
        return
    y, columns = y[: len(x)], x.flatten(1)
    chosen = _most_related(columns, y)
    explained = {number: explained_by(columns[:, number], y) for number in chosen}
    names = sample.columns() if sample.is_table else _pixels(tuple(x.shape[1:]))
    best = max(explained, key=lambda number: explained[number])
    numbers = {"feature": names[best], "explained": explained[best], "looked_at": len(chosen)}
    single = f"the best single {'feature' if sample.is_table else 'number'} is {names[best]}"
    measured = f"{single}, which explains {explained[best]:.0%} of the target"
    counting = _counting(sample, columns, names) if sample.is_table else {}
    bad = [names[number] for number, share in explained.items() if share >= _KNOWS]
    related = [name for number, name in counting.items() if explained.get(number, 0.0) >= _RELATED]
    if bad:
        predict = "predicts" if len(bad) == 1 else "each predict"
        measured = f"alone, {_list(bad)} {predict} the target: {explained[best]:.0%} explained on rows held out"
        why = "a feature that knows the answer is often made from it, and will not be there for new rows"
        yield _warning(sample, measured, why, bad, numbers)
    elif related:
        why = "the number or the date of a row has nothing to do with new rows, but is the easiest thing to learn"
        measured = f"{_list(related)} numbers or dates the rows and is related to the target"
        yield _warning(sample, measured, why, related, numbers)
    elif counting:
        measured = f"{_list(list(counting.values()))} numbers or dates the rows; {measured}"
        why = "it says nothing of new rows"
        yield Finding(LEAKS, "note", measured, why, sample.key("features"), "leave it out", numbers)
    else:
        yield Finding(LEAKS, "ok", measured, numbers=numbers)


def _warning(sample: DataSample, measured: str, why: str, features: list[str], numbers: dict[str, object]) -> Finding:
    return Finding(
        LEAKS,
        "warning",
        measured,
        why=why,
        key=sample.key("features"),
        fix=f"leave {features[0]} out of {sample.key('features')}, unless it is known before the answer is"
        if sample.is_table
        else "look for a mark of the class at this place (`lightkit show data`), and cut it off",
        numbers=numbers | {"features": features},
    )


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


def _most_related(columns: Tensor, y: Tensor) -> list[int]:
    """Return the features to look at closely: all, or those whose means differ most between targets."""
    width = columns.shape[1]
    if width <= _TOLD:
        return list(range(width))
    generator = torch.Generator().manual_seed(mix("doctor", "features"))
    some = (
        torch.randperm(width, generator=generator)[:_MOST_FEATURES] if width > _MOST_FEATURES else torch.arange(width)
    )
    x = columns[:1000, some].double()
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-9)
    goal = y[: len(x)] if y.is_floating_point() else functional.one_hot(y[: len(x)]).double()
    goal = (goal - goal.mean(0)) / goal.std(0).clamp(min=1e-9)
    strength = (goal.T @ x).abs().amax(0)
    return [int(number) for number in some[strength.topk(_TOLD // 4).indices].tolist()]


def _counting(sample: DataSample, columns: Tensor, names: list[str]) -> dict[int, str]:
    """Return the features that number or date the rows, by their place."""
    rows = sample.train.rows[: len(columns)]
    raw = sample.unscaled(columns)
    found = dict[int, str]()
    for number, name in enumerate(names):
        column = raw[:, number]
        distinct = len(column.unique()) / len(column)
        is_ordered = distinct > 0.5 and _rank_correlation(column, rows) >= _ORDERED
        is_named = distinct > 0.95 and bool(_NUMBER_NAME.search(name)) and _whole_numbers(column)
        if (
            is_ordered
            or is_named
            or (distinct > 0.05 and is_date("", column))
            or (distinct > 0.1 and is_date(name, column))
        ):
            found[number] = name
    return found


def _rank_correlation(column: Tensor, rows: Tensor) -> float:
    """Return the absolute rank correlation of a feature with the rows (Spearman's)."""
    ranks = [values.argsort(stable=True).argsort().double() for values in (column, rows)]
    centred = [rank - rank.mean() for rank in ranks]
    return abs(float((centred[0] @ centred[1]) / (centred[0].norm() * centred[1].norm()).clamp(min=1e-12)))


def _whole_numbers(column: Tensor) -> bool:
    return bool(((column - column.round()).abs() <= 1e-3 * column.abs().clamp(min=1)).all())


def is_date(name: str, column: Tensor) -> bool:
    """Tell whether a column is called a date, or its numbers look like some: 20240131, or seconds since 1970."""
    if _DATE_NAME.search(name) and "=" not in name:
        return True
    values = column.double()
    low, high = float(values.min()), float(values.max())
    if low == high or not _whole_numbers(column):
        return False
    if low >= 19_000_101 and high <= 21_001_231:
        month, day = (values / 100).floor() % 100, values % 100
        return (
            float(((month <= 13) & (day <= 33)).double().mean()) > 0.95
        )  # rounded: 32 bits do not hold the last digit
    return low > 3e8 and high < 4.2e9 and high - low < 2e9


def _pixels(shape: tuple[int, ...]) -> list[str]:
    """Name the numbers of an input by their place in it."""
    return [
        f"element {tuple(place)}"
        for place in torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape)).tolist()
    ]


def _why_not(sample: DataSample) -> str:
    y = sample.train.y
    if y is not None and len(y) < _FEWEST_ROWS:
        return f"{len(y)} training rows are too few"
    return "there is no input and target of numbers to compare"


def _list(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
