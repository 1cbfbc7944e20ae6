"""Features that know the answer: a copy of the target, the number or the date of a row.

Shapes in this file: N rows, F features, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.randomness import mix
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.order import cut_splits, explained_by, goal_of, is_date, is_series, whole_numbers
from lightkit.doctor.data.overlap import MOST_NUMBERS
from lightkit.doctor.data.sample import DataSample, begins
from lightkit.doctor.finding import Finding, Status, named

LEAKS, SCALING = "leaking features", "scaled before"
_KNOWS = 0.97
"""How much of what can be explained a single feature explains where it knows the answer."""
_RELATED = 0.3
"""The same, from which a number or a date of a row is related to the answer."""
_ORDERED = 0.99
"""Rank correlation with the row from which a feature counts rows."""
_MOST_FEATURES, _FEWEST_ROWS = 4096, 50
_LISTED, _TOLD = 5, 256
"""Features that are named, and that are looked at closely; of more, those that are most related to the target."""
_EXACT, _FEWEST_SCALED = 1e-3, 3
"""Share of its standard error by which the mean of a scaled feature may differ from 0; how many there have to be."""
_NUMBER_NAME = re.compile(r"(^|[_ .-])(id|uuid|guid|index|idx|key|rowid|number|nr|no)$|^unnamed", re.IGNORECASE)


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Find features that predict the target alone, and such that number or date the rows."""
    sample = run.sample
    yield from find_scaling(sample)
    x, y = sample.train.x, goal_of(sample)
    whole = sample.train.y
    if x is None or y is None or not x.is_floating_point() or len(x) < _FEWEST_ROWS:
        reason = "there is no input and target of numbers to compare"
        if whole is not None and len(whole) < _FEWEST_ROWS:
            reason = f"{len(whole)} training rows are too few"
        yield Finding(LEAKS, "skipped", reason)
        return
    of_inputs = whole is not None and whole.ndim > 1 and whole.shape[1:] == x.shape[1:]
    if of_inputs and sample.data.info.task == "regression":
        yield Finding(LEAKS, "skipped", "targets have the shape of the inputs, which they are made from")
        return
    y, columns = y[: len(x)], x.flatten(1)
    chosen = _most_related(columns, y, min(_TOLD, sample.most // 50))
    explained = {number: explained_by(columns[:, number], y) for number in chosen}
    names = sample.columns() if sample.is_table else _pixels(tuple(x.shape[1:]))
    best = max(explained, key=lambda number: explained[number])
    numbers: dict[str, Any] = {"feature": names[best], "explained": explained[best], "looked_at": len(chosen)}
    single = f"the best single {'feature' if sample.is_table else 'number'} is {names[best]}"
    measured = f"{single}, which explains {explained[best]:.0%} of the target"
    counting = _counting(sample, columns, names) if sample.is_table else {}
    bad = [names[number] for number, share in explained.items() if share >= _KNOWS]
    related = [name for number, name in counting.items() if explained.get(number, 0.0) >= _RELATED]
    if bad or related:
        yield _knowing(sample, bad, related, numbers)
        return
    if counting:
        measured = f"{named([*counting.values()], _LISTED)} numbers or dates the rows; {measured}"
    status: Status = "note" if counting else "ok"
    why = "it says nothing of new rows"
    yield Finding(LEAKS, status, measured, why, sample.key("features"), "leave it out", numbers)


def find_scaling(sample: DataSample) -> Iterator[Finding]:
    """Find features of mean 0 and deviation 1 over the rows of all splits, which are not so over those of training."""
    train, names, x = sample.data.rows["train"], sample.columns(), getattr(sample.data.source, "x", None)
    if not sample.is_table or x is None or len(train) == len(x) or x.numel() > MOST_NUMBERS * min(sample.most, 5000):
        return  # of a larger one the copy of double size would take long, and much memory
    x = sample.unscaled(x[:, : len(names)]).double()
    exact, is_one = _EXACT / len(x) ** 0.5, (x.std(0) - 1).abs() < 1 / len(x)
    scaled = is_one & (x.mean(0).abs() < exact) & (x[train].mean(0).abs() > 10 * exact)
    found = [names[number] for number in scaled.nonzero()[:, 0].tolist()]
    measured = f"{named(found)} have mean 0 and deviation 1 over the rows of all splits, not over those of train"
    why = "they were scaled by rows that count as unseen; what else was fitted to these tells more"
    fix = "data as they were measured, and data.normalize=standard, which is fitted to training rows"
    if len(found) >= _FEWEST_SCALED:
        yield Finding(SCALING, "warning", measured, why, "data.normalize", fix, {"features": found})


def _knowing(sample: DataSample, bad: list[str], related: list[str], numbers: dict[str, Any]) -> Finding:
    """Say what features are that know the target, or number or date the rows and are related to it."""
    features = bad or related
    measured = f"{named(features, _LISTED)} numbers or dates the rows and is related to the target"
    why = "the number or the date of a row has nothing to do with new rows, but is the easiest thing to learn"
    in_series = "in a series that is a trend: new rows lie beyond all values that the network has seen"
    if bad:
        predict = "predicts" if len(bad) == 1 else "each predict"
        measured = f"alone, {named(bad, _LISTED)} {predict} the target: "
        measured += f"{numbers['explained']:.0%} explained on rows held out"
        why = "a feature that knows the answer is often made from it, and will not be there for new rows"
        in_series = "in a series the value before tells most of the next one: "
        in_series += "see that none was measured at the same time"
    if is_series(sample) and (bad or cut_splits(sample)):
        return Finding(LEAKS, "note", measured, in_series, numbers=numbers)
    fix = "look for a mark of the class at this place (`lightkit show data`), and cut it off"
    if sample.is_table:
        fix = f"leave {features[0]} out of {sample.key('features')}, unless it is known before the answer is"
    return Finding(LEAKS, "warning", measured, why, sample.key("features"), fix, numbers | {"features": features})


def _most_related(columns: Tensor, y: Tensor, most: int) -> list[int]:
    """Return the features to look at closely: all, or those whose means differ most between targets."""
    width = columns.shape[1]
    if width <= most:
        return list(range(width))
    generator = torch.Generator().manual_seed(mix("doctor", "features"))
    some = torch.randperm(width, generator=generator) if width > _MOST_FEATURES else torch.arange(width)
    some = some[:_MOST_FEATURES]
    x = columns[:1000, some].double()
    x = (x - x.mean(0)) / x.std(0).clamp(min=1e-9)
    goal = y[: len(x)] if y.is_floating_point() else functional.one_hot(y[: len(x)]).double()
    goal = (goal - goal.mean(0)) / goal.std(0).clamp(min=1e-9)
    strength = (goal.T @ x).abs().amax(0)
    return [int(number) for number in some[strength.topk(most // 4).indices].tolist()]


def _counting(sample: DataSample, columns: Tensor, names: list[str]) -> dict[int, str]:
    """Return the features that number or date the rows, by their place."""
    rows = sample.train.rows[: len(columns)]
    raw = sample.unscaled(columns)
    counting = dict[int, str]()
    for number, (name, share) in enumerate(zip(names, begins(raw).double().mean(1).tolist())):
        column = raw[:, number]
        is_ordered = share > 0.5 and _rank_correlation(column, rows) >= _ORDERED
        is_number = share > 0.95 and bool(_NUMBER_NAME.search(name)) and whole_numbers(column)
        dates = (share > 0.05 and is_date("", column)) or (share > 0.1 and is_date(name, column))
        if is_ordered or is_number or dates:
            counting[number] = name
    return counting


def _rank_correlation(column: Tensor, rows: Tensor) -> float:
    """Return the absolute rank correlation of a feature with the rows (Spearman's)."""
    ranks = [values.argsort(stable=True).argsort().double() for values in (column, rows)]
    centred = [rank - rank.mean() for rank in ranks]
    return abs(float((centred[0] @ centred[1]) / (centred[0].norm() * centred[1].norm()).clamp(min=1e-12)))


def _pixels(shape: tuple[int, ...]) -> list[str]:
    """Name the numbers of an input by their place in it."""
    places = torch.cartesian_prod(*map(torch.arange, shape)).reshape(-1, len(shape))
    return [f"element {tuple(place)}" for place in places.tolist()]
