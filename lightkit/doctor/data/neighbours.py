"""What the rows nearest to a row say: whether splits share rows that are almost the same, and whether labels are right.

Shapes in this file: M rows of one split, N training rows, D numbers that describe a row, K neighbours, C classes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.data.order import class_names
from lightkit.doctor.data.sample import DataSample, begins
from lightkit.doctor.finding import Finding, Status

NEAR, GROUPS = "near duplicates", "groups"
_WARNED = 0.01
"""Share of the rows of a split from which near duplicates are a warning."""
_QUERIES, _NEIGHBOURS = 500, 10
_CHANCE = 1e-5
"""Share of the rows that may have so close a neighbour by chance."""
_FEWEST_ROWS, _FEWEST_FEATURES, _FEWEST_READ = 100, 4, 10_000
_COARSE, _KNOWN_ROWS = 20, 5000
"""Values below which a feature is coarse, and rows to count them in."""
_BESIDE, _AROUND = 3, 33
"""How far apart rows of a file are neighbours, and how far apart they are to be compared with these."""


def find_near_duplicates(sample: DataSample) -> Iterator[Finding]:
    """Find inputs of validation and test that are closer to a training row than rows of this data set ever are.

    Where rows lie by chance, the distance to the nearest one relative to the tenth nearest follows from the number of
    dimensions that they fill: (d1 / d10)^dim is Beta(1, 9). A neighbour closer than one in 100,000 is no chance.
    """
    for name in (name for name in sample.splits if name != "train"):
        near = _Neighbours.of(sample, name)
        yield Finding(NEAR, "skipped", near) if isinstance(near, str) else _near_finding(name, near)


def _near_finding(name: str, near: _Neighbours) -> Finding:
    close = near.suspicious()
    count, share = int(close.sum()), float(close.float().mean())
    numbers = {"split": name, "near": count, "share": share, "dimension": near.dimension, "looked_at": len(close)}
    measured = f"{count:,} of {len(close):,} rows of {name} ({share:.1%}) differ from a training row by almost nothing"
    if count < 3 or share < _WARNED:
        return Finding(NEAR, "ok", measured, numbers=numbers)
    row = int(close.nonzero()[0, 0])
    twin = (int(near.rows[row]), int(near.nearest[row]))
    measured = f"{measured}, such as row {twin[0]} from row {twin[1]}"
    why = "copies of a row (another size, brightness or rounding) on both sides of a split make the score too good"
    fix = "keep copies on one side: a data set with splits of its own, data.split.by=file"
    return Finding(NEAR, "warning", measured, why, "data.split.by", fix, numbers | {"example": twin})


class _Neighbours:
    """The training rows nearest to rows of another split.

    Args:
        rows: Rows of the other split, `(M,)`.
        nearest: The nearest training row of each, `(M,)`.
        distances: Distances to the nearest ones, `(M, K)`.
    """

    def __init__(self, rows: Tensor, nearest: Tensor, distances: Tensor) -> None:
        self.rows, self.nearest, self.distances = rows, nearest, distances
        ratio = float((distances[:, _NEIGHBOURS // 2 - 1] / distances[:, -1].clamp(min=1e-12)).median())
        # (d5 / d10)^dim is Beta(5, 5), whose median is a half.
        self.dimension = math.log(0.5) / math.log(min(max(ratio, 1e-3), 0.99))

    @classmethod
    def of(cls, sample: DataSample, name: str) -> _Neighbours | str:
        """Find them, or say why that cannot be done."""
        train, other = sample.train, sample[name]
        if train.described is None or other.described is None or train.marks is None or other.marks is None:
            return "inputs are no tensors of numbers"
        if len(train.described) < _FEWEST_ROWS or train.described.shape[1] != other.described.shape[1]:
            return f"fewer than {_FEWEST_ROWS} training rows say little about how far rows lie apart"
        known, queries = train.described, other.described[:_QUERIES]
        if sample.is_table:
            coarse = int((begins(known[:_KNOWN_ROWS]).sum(1) < _COARSE).sum())
            if coarse > known.shape[1] / 3:
                count = f"{coarse} of {known.shape[1]} features"
                return f"{count} have fewer than {_COARSE} values: many rows are alike anyway"
            if known.shape[1] < _FEWEST_FEATURES:
                return f"in {known.shape[1]} features rows are close to each other anyway"
            known, queries = _places(known, known), _places(queries, known)
        # Products are fast but inexact for what is close: they choose, and differences measure.
        squares = known.square().sum(1)[None] - 2 * queries @ known.T
        squares[other.marks[: len(queries), None] == train.marks[None]] = math.inf  # another check counts equal rows
        chosen = squares.topk(min(2 * _NEIGHBOURS, len(known)), largest=False).indices
        exact = (known[chosen] - queries[:, None]).square().sum(2).sqrt()
        exact[squares.gather(1, chosen).isinf()] = math.inf
        order = exact.argsort(1)[:, :_NEIGHBOURS]
        distances, near = exact.gather(1, order), chosen.gather(1, order)
        complete = distances[:, -1].isfinite() & (distances[:, -1] > 0)
        if int(complete.sum()) < 10:
            return "most rows have the same distance to each other"
        rows = other.rows[: len(queries)]
        return cls(rows[complete], train.rows[near[complete, 0]], distances[complete])

    def suspicious(self) -> Tensor:
        """Tell of each row whether its nearest neighbour is closer than chance lets it be, `(M,)`."""
        limit = min(0.3, (_CHANCE / (_NEIGHBOURS - 1)) ** (1 / self.dimension))
        return self.distances[:, 0] < limit * self.distances[:, -1]


def _places(x: Tensor, known: Tensor) -> Tensor:
    """Return where numbers stand in the order of their columns, 0 to 1: so all count alike, whatever their unit.

    Args:
        x: Rows `(M, D)`.
        known: The rows that make the order, `(N, D)`.
    """
    placed = torch.empty(x.shape, dtype=torch.float64)
    for number in range(x.shape[1]):
        ordered, column = known[:, number].double().unique(), x[:, number].double().contiguous()
        if len(ordered) < 2:
            placed[:, number] = 0.0
            continue
        above = torch.searchsorted(ordered, column).clamp(1, len(ordered) - 1)
        low, high = ordered[above - 1], ordered[above]
        placed[:, number] = (above - 1 + ((column - low) / (high - low)).clamp(-1, 2)) / len(ordered)
    return placed.to(torch.float32)


def find_alike_neighbours(sample: DataSample) -> Iterator[Finding]:
    """Find a data set whose neighbouring rows look alike, as frames of a film do, with a split that separates them."""
    rows, others = sample.data.rows["train"], [name for name in sample.splits if name != "train"]
    few = sample.train.share < 0.5 or sample.most < _FEWEST_READ
    if not others or few or int(rows[-1] - rows[0]) + 1 == len(rows):
        why = "too few rows were read to see neighbours" if few else "the splits are cut in order"
        yield Finding(GROUPS, "skipped", f"nothing names the group of a row, and {why}")
        return
    near = _Neighbours.of(sample, others[-1])
    if isinstance(near, str):
        yield Finding(GROUPS, "skipped", f"nothing names the group of a row, and {near}")
        return
    apart = (near.nearest - near.rows).abs()
    beside = int((apart <= _BESIDE).sum())
    around = int(((apart > _BESIDE) & (apart <= _AROUND)).sum()) * _BESIDE / (_AROUND - _BESIDE)
    share, count = beside / len(apart), len(apart)
    status: Status = "warning" if share >= 0.5 and beside >= 10 and beside >= 4 * around else "ok"
    measured = f"the training row most like a row of {others[-1]} stands next to it in {share:.0%} of {count} cases"
    why = "rows beside each other belong together (frames, days, one patient), and the split separates them"
    fix = "data.split.by=ordered, or splits of the data set by group: data.split.by=file"
    yield Finding(GROUPS, status, measured, why, "data.split.by", fix, {"share": share, "looked_at": count})


def find_shared_groups(sample: DataSample) -> Iterator[Finding]:
    """Find groups (patients, users, films) that have rows in several splits."""
    known = _named_groups(sample)
    if known is None:
        yield from find_alike_neighbours(sample)
        return
    by, column, groups = known
    parts = {name: {groups[row] for row in sample.data.rows[name].tolist()} for name in sample.splits}
    everywhere, train = len(set().union(*parts.values())), parts.pop("train")
    shared = {name: part & train for name, part in parts.items()}
    numbers = {"by": by, "groups": everywhere, "shared": {name: len(part) for name, part in shared.items()}}
    if not any(shared.values()):
        yield Finding(GROUPS, "ok", f"none of {everywhere:,} groups by {by} is in two splits", numbers=numbers)
        return
    example = next(group for part in shared.values() for group in sorted(part, key=str))
    example = int(example) if isinstance(example, float) else example
    counts = ", ".join(f"{len(part):,} of {len(parts[name]):,} in {name}" for name, part in shared.items() if part)
    measured = f"groups by {by}, such as {example}, have rows in train too: {counts}"
    why = "the network can know a group by heart, and new groups will not be known to it"
    fix = "an attribute `groups` of the data set that names the group of each row"
    if column:
        fix = f"data.split.groups={column}, which keeps rows with the same value together"
    yield Finding(GROUPS, "warning", measured, why, "data.split.groups", fix, numbers | {"example": example})


def _named_groups(sample: DataSample) -> tuple[str, str, Sequence[object]] | None:
    """Return what names the groups of all rows, the column that does, and the group of each row; None where nothing."""
    if sample.data.groups is not None:
        return "data.split.groups", "", sample.data.groups.tolist()
    by_column, files = _group_column(sample), sample.files()
    if by_column is not None or not files:
        return by_column
    names = [re.sub(r"[\W_]*(?:[a-zA-Z]{0,6}[\W_]?)?\d+[a-zA-Z]?$", "", file.stem) for file in files]
    counts = Counter(name if re.search(r"\d", name) else "" for name in names)
    is_pattern = counts[""] == 0 and 2 * sample.data.info.num_classes < len(counts) <= len(files) / 2
    return ("file name", "", names) if is_pattern else None


_GROUP_NAME = re.compile(
    r"(^|[_ .-])(patient|subject|person|user|customer|client|session|group|site|household|speaker|writer|video|scene|"
    r"family|device|sensor|batch|plate|store|author)([_ .-]?(id|no|nr|num|number|key|uuid))?$",
    re.IGNORECASE,
)


def _group_column(sample: DataSample) -> tuple[str, str, list[float]] | None:
    """Return a column that says by its name that it names groups, with few rows a value."""
    x = getattr(sample.data.source, "x", None)
    if not sample.is_table or not isinstance(x, Tensor):
        return None
    names = sample.columns()
    for number, name in enumerate(names):
        if "=" not in name and _GROUP_NAME.search(name):
            column = sample.unscaled(x[:, : len(names)])[:, number]
            values = column.round().tolist()
            is_whole = float((column - column.round()).abs().max()) <= 0.01
            if is_whole and 10 <= len(set(values)) <= len(values) / 1.5:
                return f"column {name!r}", name, values
    return None


WRONG, ORDERED = "wrong labels", "ordered classes"
_CLASSES = ("multiclass", "binary")
_MOST_LABELS, _FEWEST_LABELS, _VOTES = 2000, 100, 15
_BEYOND_CHANCE, _LEAST_AGREEING, _AGREEING = 0.1, 0.45, 0.85
"""How much neighbours tell beyond chance, and how often they are right at least and at most."""
_SURER, _SURER_OF_MANY, _MANY = 0.45, 0.6, 5
"""By how many deviations more neighbours agree where they are right: by 0.5 and more where classes overlap. Of many
classes wrong labels are told by being any of the others, too."""
_COARSE_COLUMN, _COARSE_ROWS = 10, 500
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
        info, y, described = sample.data.info, sample.train.y, sample.train.described
        if y is None or described is None or len(described) < _FEWEST_LABELS or info.task not in _CLASSES:
            return None
        y, x = y[:_MOST_LABELS].reshape(len(y[:_MOST_LABELS]), -1).long(), described[:_MOST_LABELS].double()
        if y.shape[1] != 1 or int(y.min()) < 0:
            return None
        if sample.is_table:  # of a few values, such as yes and no, each may well have rows of all classes
            x = x[:, begins(x[:_COARSE_ROWS]).sum(1) >= _COARSE_COLUMN]
            x = (x - x.mean(0)) / x.std(0).clamp(min=1e-9)
        if not x.shape[1]:
            return None
        distances = torch.cdist(x, x)
        distances[distances <= 1e-9 * float(distances.max())] = torch.inf  # itself, and copies of it
        nearest = distances.topk(_VOTES, largest=False).indices
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
