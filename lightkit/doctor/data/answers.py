"""Whether labels are what rows nearby say they are: wrong ones among them, and numbers that were taken for classes.

Shapes in this file: N rows, K neighbours, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.data.targets import class_names
from lightkit.doctor.finding import Finding, Status

WRONG, ORDERED = "wrong labels", "ordered classes"
_MOST_ROWS, _FEWEST_ROWS, _NEIGHBOURS = 2000, 100, 15
_BEYOND_CHANCE, _LEAST_AGREEING, _AGREEING = 0.1, 0.45, 0.85
"""How much neighbours tell beyond chance, and how often they are right at least and at most."""
_SURER, _SURER_OF_MANY, _MANY = 0.45, 0.6, 5
"""By how many deviations more neighbours agree where they are right: by 0.5 and more where classes overlap. Of many
classes wrong labels are told by being any of the others, too."""
_COARSE, _COARSE_ROWS = 10, 500
"""Values from which on a feature is no yes or no, and rows to count them in."""
_UNEVEN = 0.15
"""How far wrong answers may be from those of chance, beyond what so few rows explain."""
_MOST_CLASSES = 64
_MANY_CLASSES, _IN_ORDER, _TOLD_APART = 20, 0.85, 0.5
"""Classes that may be numbers, how near classes of neighbours are beside those of any rows, and how many are equal."""


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Compare the label of each row with those of the rows nearest to it."""
    near = Neighbourhood.of(run.sample)
    if near is None:
        return
    yield from find_ordered_classes(run.sample, near)
    yield from find_wrong_labels(near)


@dataclass(frozen=True)
class Neighbourhood:
    """Labels of rows, and of those nearest to each."""

    labels: Tensor
    """Classes of rows, `(N,)`."""
    around: Tensor
    """Classes of their neighbours, the nearest first, `(N, K)`."""
    classes: int
    """How many classes there are."""

    @classmethod
    def of(cls, sample: DataSample) -> Neighbourhood | None:
        """Find the neighbours of training rows; None where there are too few, or no classes."""
        train, info = sample.train, sample.data.info
        y, described = train.y, train.described
        if y is None or described is None or info.task not in ("multiclass", "binary") or len(described) < _FEWEST_ROWS:
            return None
        y, x = y[:_MOST_ROWS].reshape(len(y[:_MOST_ROWS]), -1).long(), described[:_MOST_ROWS].double()
        if y.shape[1] != 1 or int(y.min()) < 0:
            return None
        if sample.is_table:  # of a few values, such as yes and no, each may well have rows of all classes
            x = x[:, [len(column[:_COARSE_ROWS].unique()) >= _COARSE for column in x.unbind(1)]]
            x = (x - x.mean(0)) / x.std(0).clamp(min=1e-9)
        if not x.shape[1]:
            return None
        distances = torch.cdist(x, x)
        distances[distances <= 1e-9 * float(distances.max())] = torch.inf  # itself, and copies of it
        nearest = distances.topk(_NEIGHBOURS, largest=False).indices
        return cls(y[:, 0], y[:, 0][nearest], max(info.num_classes, 2))


def find_wrong_labels(near: Neighbourhood) -> Iterator[Finding]:
    """Find labels that contradict rows nearby as often where these agree as elsewhere, and say anything in their place.

    Classes that are hard to tell apart contradict each other at their border, and are mistaken for certain others.
    Labels that were mixed up do so everywhere, and for all others alike.
    """
    labels, count = near.labels, near.classes
    if count > _MOST_CLASSES:
        return
    most, voted = functional.one_hot(near.around, count).sum(1).max(1)
    right, votes = voted == labels, most.double()
    wrong = 1 - float(right.double().mean())
    usual = float(labels.bincount().max()) / len(labels)
    by_class = voted.bincount(minlength=count)
    if not max(usual + _BEYOND_CHANCE, _LEAST_AGREEING) <= 1 - wrong <= _AGREEING:
        return
    surer = float((votes[right].mean() - votes[~right].mean()) / votes.std().clamp(min=1e-9))
    noise = float((1 / right.sum() + 1 / (~right).sum()).sqrt())
    alike = surer + noise <= (_SURER_OF_MANY if count >= _MANY else _SURER) and _unevenness(near, voted) <= _UNEVEN
    if not alike or int((by_class < 0.2 * len(labels) / count).sum()) > 0:
        return
    measured = (
        f"{wrong:.0%} of {len(labels):,} training rows have another label than most rows like them: any of the others, "
        "and where these agree as often as where they do not"
    )
    why = "classes that are hard to tell do so at their border only: here labels themselves are wrong"
    fix = (
        "look at rows beside their labels (`lightkit show data`): a join by another key, a shifted file, careless "
        "annotation; loss.label_smoothing=0.1 makes what is left do less harm"
    )
    status: Status = "warning" if count > 2 else "note"  # of two classes any relation that is weak looks so
    yield Finding(WRONG, status, measured, why, "data.dataset", fix, {"wrong": wrong, "surer": surer})


def _unevenness(near: Neighbourhood, voted: Tensor) -> float:
    """Return how far labels that contradict their neighbours are from chance, less than so few rows explain.

    Two things are looked at: how often each class is contradicted, and by which labels.
    """
    count, table = near.classes, torch.zeros(near.classes, near.classes, dtype=torch.float64)
    table.index_put_((voted, near.labels), torch.ones(len(voted), dtype=torch.float64), accumulate=True)
    sizes, other = table.sum(1), table.clone().fill_diagonal_(0)
    rates = other.sum(1) / sizes
    uneven_rates = float(rates.max() - rates.min()) - 3 * float((0.25 * 2 / sizes.min()).sqrt())
    shares = torch.bincount(near.labels, minlength=count).double().expand(count, count).clone().fill_diagonal_(0)
    expected = shares / shares.sum(1, keepdim=True).clamp(min=1e-9) * other.sum(1, keepdim=True)
    wrong = float(other.sum().clamp(min=1))
    uneven = float((other - expected).abs().sum()) / 2 / wrong - 0.5 * (count * max(count - 2, 0) / wrong) ** 0.5
    return max(uneven_rates, uneven)


def find_ordered_classes(sample: DataSample, near: Neighbourhood) -> Iterator[Finding]:
    """Find classes that are numbers, such as ages: rows that are alike have classes that are near each other."""
    info, labels = sample.data.info, near.labels
    there, values = labels.unique(), None
    with suppress(ValueError):
        names = class_names(info.class_names, info.num_classes)
        values = torch.tensor([float(name) for name in names], dtype=torch.float64)
    if info.task != "multiclass" or len(there) < _MANY_CLASSES or values is None:
        return
    first = near.around[:, :5]
    differ = first != labels[:, None]
    if float(differ.double().mean()) < _TOLD_APART:
        return
    own = values[labels]
    apart = float((values[first] - own[:, None]).abs()[differ].mean())
    pairs = (own[:, None] - own[None]).abs()
    anyhow = float(pairs[labels[:, None] != labels[None]].mean())
    if apart > _IN_ORDER * anyhow:
        return
    low, high = f"{float(values[there].min()):g}", f"{float(values[there].max()):g}"
    measured = (
        f"{len(there)} classes from {low} to {high} are numbers in an order: those of rows that are alike are "
        f"{apart:.3g} apart, of any two rows {anyhow:.3g}"
    )
    why = "to a classification 41 is as wrong as 80 where 40 is right, and each number has few rows to learn from"
    fix = "make it a regression: targets as float (y.float()), loss=mse metrics=regression"
    numbers = {"classes": len(there), "apart": apart, "any": anyhow}
    yield Finding(ORDERED, "warning", measured, why, "loss", fix, numbers)
