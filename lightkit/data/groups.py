"""Rows that belong together: groups of a data set, rows with the same inputs, and dealing whole groups out to parts.

Shapes: N rows, G groups, C classes, P parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.common.text import counted
from lightkit.data.tensors import TensorData

USUAL, TIMES, WEIGHTS = "groups", "times", "weights"
"""The attributes by which a data set tells group, time and weight of each row, where nothing else is said."""


def row_groups(source: Any, name: str | None) -> Tensor | None:
    """Return a number for the group of each row, `(N,)` int64; None where rows belong to no groups.

    Args:
        source: The data set.
        name: An attribute of it (`groups` may be missing), or a feature of a table; None leaves groups aside.

    Raises:
        UserError: There is no such attribute or feature, it has another length, or a row has no group.
    """
    found = row_values(source, name, usual=USUAL, argument="split.groups")
    return None if found is None else _numbered(found, name, "split.groups")


def row_times(source: Any, name: str | None) -> Tensor:
    """Return the place of each row in the order of time, `(N,)` int64, equal for equal times.

    Args:
        source: The data set.
        name: An attribute of it, or a feature of a table: numbers, or dates as texts of ISO 8601.

    Raises:
        UserError: There is none of that name, it has another length, or a row has no time.
    """
    values = row_values(source, name, usual="", argument="split.time")
    if values is None:
        raise UserError("the time of each row is to be named", argument="split.time", received=name, family="split")
    if values.dtype.kind in "OSU":
        with suppress(ValueError, TypeError):
            return _numbered(values.astype(np.float64), name, "split.time")
        try:
            values = values.astype("datetime64[us]")
        except (ValueError, TypeError) as error:
            what, expected = f"`{name}` holds what is no time: {error}", "numbers, or dates such as 2024-01-31T12:00"
            raise UserError(what, argument="split.time", family="split", expected=expected) from error
    return _numbered(values, name, "split.time")


def row_values(source: Any, name: str | None, *, usual: str, argument: str) -> np.ndarray | None:
    """Return what a data set tells of each row, `(N,)`; None where it tells nothing and nobody has asked for it.

    Args:
        source: The data set.
        name: An attribute of it, or a feature of a table; None leaves it aside.
        usual: The name of what may be missing.
        argument: What messages call the name.

    Raises:
        UserError: There is no such attribute or feature, or it has another length.
    """
    found = None if name is None else _attribute(source, name)
    if found is None and name is not None:
        found = _feature(source, name)
    if found is None and name not in (None, usual):
        raise UserError(
            "the data set has no such attribute and no such feature",
            argument=argument,
            family="split",
            received=name,
            choices=[usual or TIMES, *dict.fromkeys(feature.partition("=")[0] for feature in _features(source))],
            fix="data.dataset.group_column, time_column and weight_column name columns of a table that are no features",
        )
    if found is None:
        return None
    values = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(_listed(found))
    if values.shape != (len(source),):
        raise UserError(
            f"`{name}` of the data set has to name one {_kind(argument)} for each row",
            argument=argument,
            family="split",
            expected=counted(len(source), "value"),
            received=f"a value of shape {values.shape}" if values.ndim != 1 else counted(len(values), "value"),
            fix=f"data.{argument}=null leaves it aside",
        )
    return values


def _attribute(source: Any, name: str) -> Any:
    """Return an attribute of a data set, or of the one that it wraps; None where there is none, or a method."""
    for owner in (source, getattr(source, "base", None)):
        found = getattr(owner, name, None)
        if found is not None and not callable(found):
            return found
    return None


def _features(source: Any) -> tuple[str, ...]:
    return tuple(source.feature_names) if isinstance(source, TensorData) else ()


def _feature(source: Any, name: str) -> Tensor | None:
    """Return the values of a feature of a table, or the number of its name where it holds names."""
    names = _features(source)
    if name in names:
        return source.x[:, names.index(name)]
    kinds = [place for place, feature in enumerate(names) if feature.startswith(f"{name}=")]
    if not kinds:
        return None
    which = source.x[:, kinds]
    return torch.where(which.sum(1) == 1, which.argmax(1).to(which.dtype), torch.nan)


def _numbered(values: np.ndarray, name: str | None, argument: str) -> Tensor:
    """Number the groups or times of rows in their order, and refuse rows without one."""
    kind = _kind(argument)
    without = np.array([value is None or value != value for value in values.tolist()], dtype=bool)
    if without.any():
        raise UserError(
            f"row {int(without.argmax())} has no {kind} in `{name}`",
            argument=argument,
            family="split",
            expected=f"a {kind} for each row",
            received=f"{int(without.sum())} of {counted(len(values), 'row')} without one",
            fix=f"give each of these rows a {kind} of its own, or leave the rows out",
        )
    values = values.astype(str) if values.dtype == object else values
    return torch.from_numpy(np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64))


def _kind(argument: str) -> str:
    return argument.rpartition(".")[2].removesuffix("s")


def _listed(found: Any) -> Any:
    return found if isinstance(found, np.ndarray) or not isinstance(found, Iterable) else list(found)


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
            raise UserError(
                f"the splits tear groups apart: rows {int(twin)} and {int(torn[0])} are of one group, "
                f"but one is in {other} and one in {name}",
                argument="split.groups",
                family="split",
                expected="each group in one split",
                received=f"{len(groups[torn].unique())} of {len(groups.unique())} groups in both",
                fix="splits that keep groups whole, or data.split.groups=null, which leaves groups aside",
            )


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
            raise UserError(
                "rows cannot be cut in order without tearing groups apart: they stand mixed with each other",
                argument="split.groups",
                family="split",
                expected=f"{len(wanted)} places or more between rows where no group is on both sides",
                received=f"{len(places)}",
                fix="data.split.by=random, or data.split.groups=null, which leaves groups aside",
            )
        cuts.append(min(free, key=lambda place: abs(place - at)))
    return np.diff([*cuts, len(unit)]).tolist()
