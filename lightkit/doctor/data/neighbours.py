"""Whether rows of validation and test have a training row that is almost the same, or that stands next to them.

Shapes in this file: M rows of one split, N training rows, D numbers that describe a row, K neighbours.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightkit.doctor.data.sample import DataSample
from lightkit.doctor.finding import Finding, Status

NEAR, GROUPS = "near duplicates", "groups"
_WARNED = 0.01
"""Share of the rows of a split from which near duplicates are a warning."""
_QUERIES, _NEIGHBOURS = 500, 10
_CHANCE = 1e-5
"""Share of the rows that may have so close a neighbour by chance."""
_FEWEST_ROWS, _FEWEST_FEATURES = 100, 4
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
        known, asked = train.described, other.described[:_QUERIES]
        if sample.is_table:
            coarse = sum(len(column.unique()) < _COARSE for column in known[:_KNOWN_ROWS].unbind(1))
            if coarse > known.shape[1] / 3:
                count = f"{coarse} of {known.shape[1]} features"
                return f"{count} have fewer than {_COARSE} values: many rows are alike anyway"
            if known.shape[1] < _FEWEST_FEATURES:
                return f"in {known.shape[1]} features rows are close to each other anyway"
            known, asked = _places(known, known), _places(asked, known)
        # Products are fast but inexact for what is close: they choose, and differences measure.
        squares = known.square().sum(1)[None] - 2 * asked @ known.T
        squares[other.marks[: len(asked), None] == train.marks[None]] = math.inf  # another check counts equal rows
        chosen = squares.topk(min(2 * _NEIGHBOURS, len(known)), largest=False).indices
        exact = (known[chosen] - asked[:, None]).square().sum(2).sqrt()
        exact[squares.gather(1, chosen).isinf()] = math.inf
        order = exact.argsort(1)[:, :_NEIGHBOURS]
        distances, found = exact.gather(1, order), chosen.gather(1, order)
        complete = distances[:, -1].isfinite() & (distances[:, -1] > 0)
        if int(complete.sum()) < 10:
            return "most rows have the same distance to each other"
        rows = other.rows[: len(asked)]
        return cls(rows[complete], train.rows[found[complete, 0]], distances[complete])

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
    if not others or sample.train.share < 0.5 or int(rows[-1] - rows[0]) + 1 == len(rows):
        why = "the splits are cut in order" if sample.train.share >= 0.5 else "too few rows were read to see neighbours"
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
