"""Rows that belong together: groups of a data set, rows with the same inputs, and dealing whole groups out to parts.

Shapes: N rows, G groups, C classes, P parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix


def check_whole(splits: Mapping[str, Tensor], groups: Tensor) -> None:
    """Refuse splits that tear groups apart, such as those that a data set brings with it.

    Args:
        splits: Rows of each split.
        groups: `(N,)`: the group of each row.

    Raises:
        UserError: A group has rows in two splits.
    """
    for name, rows in splits.items():
        for other in [*splits][: [*splits].index(name)]:
            torn = rows[torch.isin(groups[rows], groups[splits[other]])]
            if not len(torn):
                continue
            twin = splits[other][groups[splits[other]] == groups[torn[0]]][0]
            what = f"the splits tear groups apart: rows {int(twin)} and {int(torn[0])} are of one group, "
            what += f"but one is in {other} and one in {name}"
            received = f"{len(groups[torn].unique())} of {len(groups.unique())} groups in both"
            fix = "splits that keep groups whole, or data.split.groups=null, which leaves groups aside"
            facts: dict[str, Any] = {"expected": "each group in one split", "received": received, "fix": fix}
            raise UserError(what, argument="split.groups", family="split", **facts)


def row_marks(x: Tensor) -> Tensor:
    """Hash each row of a tensor `(N, ...)` to 64 bits, `(N,)`; equal rows of one type have equal marks."""
    flat = x.detach().cpu().reshape(len(x), -1)
    if flat.is_floating_point():
        flat = flat.to(torch.float32) + 0.0  # -0.0 is 0.0
    octets = flat.contiguous().view(torch.uint8)
    words = functional.pad(octets, (0, -octets.shape[1] % 8)).view(torch.int64)
    generator = torch.Generator().manual_seed(mix("doctor", "marks"))
    weights = torch.randint(-(1 << 62), 1 << 62, (words.shape[1],), generator=generator) * 2 + 1
    # Short numbers have their bits at the upper end, where they count for little.
    marks = ((words ^ (words >> 11) ^ (words >> 19) ^ (words >> 37)) * weights).sum(1)
    return marks ^ (marks >> 29)


def marks_of(pieces: Iterable[Any]) -> Tensor | None:
    """Hash the inputs of some rows, which come piece by piece; None where they are no tensors."""
    found = []
    for x in pieces:
        if not isinstance(x, Tensor) or x.is_complex() or x.is_nested or x.ndim < 1:
            return None
        found.append(row_marks(x.to(torch.uint8) if x.dtype == torch.bool else x))
    return torch.cat(found) if found else None


def join_equal(groups: Tensor, rows: Tensor, marks: Tensor) -> Tensor:
    """Make one of groups that have rows with equal marks.

    Args:
        groups: `(N,)`: the group of each row of the data set, below N.
        rows: `(R,)`: rows whose inputs are known.
        marks: `(R,)`: hashes of these.

    Returns:
        The group of each row, `(N,)`: that with the smallest number of those that were joined.
    """
    same = marks.unique(return_inverse=True)[1]
    label = groups
    while True:
        least = _least(label[rows], same)[same]
        found = label.clone()
        found[rows] = least
        found = _least(found, groups)[groups]
        if torch.equal(found, label):
            return label
        label = found


def _least(values: Tensor, places: Tensor) -> Tensor:
    """Return the smallest value of each place."""
    size = int(places.max()) + 1 if len(places) else 0
    start = torch.full((size,), torch.iinfo(torch.int64).max, dtype=torch.int64)
    return start.scatter_reduce(0, places, values, "amin")


def deal(groups: Tensor, classes: Tensor | None, shares: Sequence[float], seed: int) -> Tensor:
    """Return the part of each row, `(N,)` int64: large groups first, each to the part that lacks most.

    What is kept small, greedily, is the sum over parts and classes of the square of what a part has of a class, over
    its share. While there are groups enough, no part stays empty.

    Args:
        groups: `(N,)` int64: the group of each row.
        classes: `(N,)` int64: classes whose shares the parts keep; None takes all rows for one class.
        shares: What share of the rows each part is to have, above 0.
        seed: Seed of the order among groups of the same size.
    """
    unit = groups.unique(return_inverse=True)[1]
    kind = torch.zeros_like(unit) if classes is None else classes.unique(return_inverse=True)[1]
    kinds, count = int(kind.max()) + 1, int(unit.max()) + 1
    sizes = (unit * kinds + kind).bincount(minlength=count * kinds).reshape(count, kinds).double().numpy()
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    order = shuffled[np.argsort(-sizes[shuffled].sum(1), kind="stable")]
    several = int((sizes.sum(1) > 1).sum())
    parts = np.asarray(shares, dtype=np.float64) / max(shares)
    chosen, load = np.zeros(count, dtype=np.int64), np.zeros((len(parts), kinds))
    _deal_groups(order[:several], sizes, parts, chosen, load, rest=count - several)
    _deal_rows(order[several:], sizes, parts, chosen, load)
    return torch.from_numpy(chosen)[unit]


def _deal_groups(
    order: np.ndarray, sizes: np.ndarray, parts: np.ndarray, chosen: np.ndarray, load: np.ndarray, *, rest: int
) -> None:
    """Deal out groups of several rows, one after the other.

    Args:
        order: `(G,)`: the groups, the largest first.
        sizes: Rows of all groups, by class.
        parts: `(P,)`: shares, the largest of them 1.
        chosen: Gets the part of each group.
        load: `(P, C)`: gets what each part has.
        rest: How many groups come later.
    """
    scale = np.square(sizes.sum(0))
    for done, at in enumerate(order):
        weight = sizes[at] / scale
        cost = (load @ weight + sizes[at] @ weight / 2) / parts
        empty = load.sum(1) == 0
        if empty.sum() > 0 and len(order) - done + rest <= empty.sum():
            cost = np.where(empty, cost, np.inf)
        filled = load.sum(1) / parts
        place = int(np.where(cost == cost.min(), filled, np.inf).argmin())
        load[place] += sizes[at]
        chosen[at] = place


def _deal_rows(order: np.ndarray, sizes: np.ndarray, parts: np.ndarray, chosen: np.ndarray, load: np.ndarray) -> None:
    """Deal out groups of one row, all of a class at once; the arguments are those of `_deal_groups`."""
    kind = sizes[order].argmax(1) if len(order) else order
    for at in range(sizes.shape[1]):
        own = order[kind == at]
        quotas = _quotas(load[:, at], len(own), parts, load.sum(1))
        chosen[own] = np.repeat(np.arange(len(parts)), quotas)
        load[:, at] += quotas


def _quotas(load: np.ndarray, count: int, parts: np.ndarray, filled: np.ndarray) -> np.ndarray:
    """Share out rows of a class so that parts come nearest to their shares of it; `(P,)` int64.

    Args:
        load: What each part has of the class.
        count: Rows to share out.
        parts: Their shares, the largest of them 1.
        filled: What each part has of all classes; what rounding leaves goes to those that lack most.
    """
    wants = parts > 0
    while True:
        level = (load[wants].sum() + count) / parts[wants].sum()
        exact = np.where(wants, level * parts - load, 0.0)
        if (exact >= 0).all():
            break
        wants &= exact >= 0
    quotas = np.floor(exact + 1e-9).astype(np.int64)
    lack = np.round(exact - quotas, 9)
    order = np.lexsort((filled / parts, -lack))
    quotas[order[: count - int(quotas.sum())]] += 1
    return quotas


def cut_in_order(groups: Tensor, sizes: Sequence[int]) -> list[int]:
    """Return the sizes of parts that follow each other, cut where no group is torn, each cut as near as can be.

    Args:
        groups: `(N,)` int64: the group of each row, in order.
        sizes: The wanted size of each part; their sum is N.

    Raises:
        UserError: There are too few places where no group is on both sides.
    """
    unit = groups.unique(return_inverse=True)[1]
    last = torch.zeros(int(unit.max()) + 1 if len(unit) else 0, dtype=torch.int64)
    last = last.scatter_reduce(0, unit, torch.arange(len(unit)), "amax")
    ends = last[unit].cummax(0).values == torch.arange(len(unit))
    places = (ends.nonzero().reshape(-1) + 1)[:-1].tolist()
    cuts, wanted = [0], np.cumsum(sizes)[:-1].tolist()
    for number, at in enumerate(wanted):
        later = len(wanted) - 1 - number
        free = [place for place in places if place > cuts[-1]]
        free = free[: len(free) - later]
        if not free:
            what = "rows cannot be cut in order without tearing groups apart: they stand mixed with each other"
            expected = f"{len(wanted)} places or more between rows where no group is on both sides"
            fix = "data.split.by=random, or data.split.groups=null, which leaves groups aside"
            facts: dict[str, Any] = {"expected": expected, "received": f"{len(places)}", "fix": fix}
            raise UserError(what, argument="split.groups", family="split", **facts)
        cuts.append(min(free, key=lambda place: abs(place - at)))
    return np.diff([*cuts, len(unit)]).tolist()
