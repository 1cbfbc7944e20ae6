"""Which rows are for training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lightkit.common.argument_checks import FOLDS, check_fold, check_range, check_shares
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.common.text import counted
from lightkit.data.groups import check_whole, cut_in_order, deal
from lightkit.data.row_facts import TIMES, USUAL, row_groups, row_times
from lightkit.data.row_sets import listed_rows, split_sets

WAYS = ("stratified", "random", "ordered", "time", "file", *FOLDS)
_TIMED = ("time", "time_fold")
_NAMES = ("train", "val", "test")


@dataclass(frozen=True)
class SplitSpec:
    """How rows become splits.

    Splits that the data set brings with it are kept; missing ones are drawn from its train part.

    Args:
        by: `stratified` keeps class shares, `random`, `ordered` cuts without shuffling (train, val, test), `time` cuts
            from the oldest row to the newest, `file` insists on splits the data set brings, `fold` takes fold number
            `fold` of `folds` as test, whatever the data set brings. `time_fold` does so in the order of time: training
            and validation have the rows before the test rows, as `sklearn.model_selection.TimeSeriesSplit`.
        val: Share of all rows for validation; 0 leaves the split out.
        test: Share of all rows for test; ignored for `fold` and where the data set brings a test split.
        seed: Seed of the draw.
        folds: Number of folds.
        fold: Which fold is the test split, from 0.
        limit: At most this many training rows; None takes all.
        limit_seed: Seed of their draw, with the shares of the classes where `stratified` or `fold` keeps these. The
            rows of a smaller limit are among those of a larger one. None takes the first of the drawn order.
        time: What names the time of each row, see `lightkit.data.groups.row_times`.
        files: The file of each split, see `lightkit.data.row_sets.listed_rows`.
        val_limit: At most this many validation rows, drawn from all of them; None takes all.
        test_limit: The same of test rows.
        per_class: At most this many training rows of each class, the first of the drawn order; None takes all.
        groups: What names the group of each row, see `lightkit.data.groups.row_groups`; None leaves groups aside.

    Raises:
        UserError: A value is out of range.
    """

    by: str = "random"
    val: float = 0.1
    test: float = 0.2
    seed: int = 0
    folds: int = 5
    fold: int = 0
    limit: int | None = None
    limit_seed: int | None = None
    per_class: int | None = None
    groups: str | None = USUAL
    val_limit: int | None = None
    test_limit: int | None = None
    time: str | None = TIMES
    files: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.by not in WAYS:
            raise UserError("not a way to split", argument="split.by", received=self.by, choices=WAYS)
        for name in ("val", "test"):
            check_range(f"split.{name}", getattr(self, name), low=0, below=1, what="not a share of the rows")
        check_shares(self.by, self.val, self.test)
        if self.by in FOLDS:
            check_range("split.folds", self.folds, low=2, what="too few folds")
            check_fold(self.by, self.folds, self.fold)
            if self.files:
                what, fix = "folds are drawn, and files say what the splits are", "data.split.by=file"
                raise UserError(what, argument="split.files", received=self.by, fix=fix, family="contradiction")
        for name in ("limit", "per_class"):
            check_range(f"split.{name}", getattr(self, name), low=1, what="training needs a row")
        for name in ("val_limit", "test_limit"):
            check_range(f"split.{name}", getattr(self, name), low=1, what="an evaluation needs a row")


def split_rows(
    spec: SplitSpec,
    num_rows: int,
    *,
    strata: Tensor | None = None,
    given: Mapping[str, Any] | None = None,
    groups: Tensor | None = None,
) -> dict[str, Tensor]:
    """Assign rows to the splits that are not left out, in rising order; no row is in two splits, and no group.

    Args:
        spec: How to split.
        num_rows: Rows of the data set.
        strata: `(N,)` int64 groups whose shares `stratified` and `fold` keep.
        given: Splits the data set brings with it, see `lightkit.data.row_sets.split_sets`.
        groups: `(N,)` int64: rows of one group stay together, so shares are kept as nearly as groups allow. For `time`
            the place of each row in time.

    Raises:
        UserError: A split would be empty, a class has too few rows, the data set lacks what `spec` asks for, its own
            splits are wrong, or they tear a group apart.
    """
    if spec.by == "stratified" and strata is None:
        what = "only classes can be stratified, and the class of each row is not known"
        fix = "data.split.by=random; a data set of classes gives that of each row in an attribute `targets`"
        raise UserError(what, argument="split.by", received="stratified", fix=fix)
    if spec.by == "time_fold" and groups is not None:
        splits = _by_time_fold(spec, groups)
    elif spec.by == "fold":
        splits = _by_fold(spec, torch.arange(num_rows), strata, groups)
    else:
        own = split_sets(given, num_rows, argument="split.files" if spec.files else "dataset.splits")
        if groups is not None and spec.by != "time":
            check_whole(own, groups)  # what is drawn from them below tears none
        splits = _by_share(spec, num_rows, strata=strata, given=own, groups=groups)
    if spec.per_class is not None:
        splits["train"] = _first_of_each(splits["train"], spec.per_class, strata)
    splits = _limited(spec, splits, strata if spec.by in ("stratified", "fold") else None)
    for name, rows in splits.items():
        if not len(rows):
            argument, fix = f"split.{name}" if name != "train" else "split", "a larger share, or more rows"
            raise UserError(f"the {name} split is empty", argument=argument, received=counted(num_rows, "row"), fix=fix)
    return {name: splits[name].sort().values for name in _NAMES if name in splits}


def split_source(
    source: Any, spec: SplitSpec, known: Mapping[str, Tensor] | None
) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None]:
    """Assign the rows of a data set to splits, or take known ones; returns the group and the time of each row, too."""
    ways = getattr(source, "split_by", WAYS)
    if spec.by not in ways:
        what = "the samples overlap, so they are cut in order, not into folds or at random"
        raise UserError(what, argument="split.by", received=spec.by, choices=ways)
    groups = row_groups(source, spec.groups)
    times = row_times(source, spec.time) if spec.by in _TIMED else None
    if known is not None:
        return dict(known), groups, times
    given = listed_rows(spec.files, source) if spec.files else getattr(source, "splits", None)
    units = groups if times is None else times
    rows = split_rows(spec, len(source), strata=getattr(source, "strata", None), given=given, groups=units)
    if times is not None and groups is not None:
        check_whole(rows, groups)
    return rows, groups, times


def rows_to_measure(source: Any) -> dict[str, Tensor]:
    """Return the rows of a further set, as `test` and `train`: its own test rows where it brings some, else all."""
    brought = split_sets(getattr(source, "splits", None), len(source), argument="dataset.splits")
    return dict.fromkeys(("train", "test"), brought.get("test", torch.arange(len(source))))


def _limited(spec: SplitSpec, splits: Mapping[str, Tensor], strata: Tensor | None) -> dict[str, Tensor]:
    """Take no more rows of each split than are asked for: of an evaluation any, as rows may lie in order of classes."""
    found = dict(splits)
    if spec.limit is not None and spec.limit_seed is not None:
        rows = found["train"][_shuffle(len(found["train"]), spec.limit_seed)]
        kinds = torch.zeros_like(rows) if strata is None else strata[rows]
        found["train"] = torch.cat([rows[kinds == kind][:few] for kind, few in _quotas(kinds, spec.limit).items()])
    if spec.limit is not None:
        found["train"] = found["train"][: spec.limit]
    for name, limit in (("val", spec.val_limit), ("test", spec.test_limit)):
        if name in found and limit is not None:
            found[name] = found[name][_shuffle(len(found[name]), mix(spec.seed, name))[:limit]]
    return found


def _by_share(
    spec: SplitSpec, num_rows: int, *, strata: Tensor | None, given: Mapping[str, Tensor], groups: Tensor | None
) -> dict[str, Tensor]:
    if spec.by == "file" and len(given) < 2:
        what = "the data set brings no splits with it"
        raise UserError(what, argument="split.by", received="file", choices=[way for way in WAYS if way != "file"])
    splits = dict(given)
    pool = splits.pop("train", torch.arange(num_rows))
    drawn = {name: getattr(spec, name) for name in ("val", "test") if getattr(spec, name) > 0 and name not in splits}
    if spec.by == "file":
        drawn.pop("test", None)
    counts = {name: round(share * num_rows) for name, share in drawn.items()}
    if groups is not None and any(counts.values()):
        return splits | _in_groups(pool, counts, groups, spec, strata)
    ordered = pool if spec.by == "ordered" else pool[_shuffle(len(pool), spec.seed)]
    parts = _stratified(ordered, counts, strata) if spec.by == "stratified" and strata is not None else None
    return splits | (parts or _cut(ordered, counts))


def _in_groups(
    rows: Tensor, counts: Mapping[str, int], groups: Tensor, spec: SplitSpec, strata: Tensor | None
) -> dict[str, Tensor]:
    """Cut rows into train and others whose groups stay whole; each split has nearly its share."""
    sizes = {"train": max(0, len(rows) - sum(counts.values()))} | dict(counts)
    sizes = {name: size for name, size in sizes.items() if size}
    timed = spec.by in _TIMED
    rows = rows[groups[rows].argsort(stable=True)] if timed else rows
    own, empty = groups[rows], dict.fromkeys(counts, rows[:0])
    if len(own.unique()) < len(sizes):
        kind, argument = ("times", "split.time") if timed else ("groups", "split.groups")
        what = f"there are fewer {kind} ({len(own.unique())}) than splits ({len(sizes)})"
        fix = "data.split.val=0 or data.split.test=0; or data.split.groups=null, which leaves groups aside"
        raise UserError(what, argument=argument, family="split", fix=fix)
    if timed or spec.by == "ordered":
        pieces = rows.split(cut_in_order(own, [*sizes.values()]))
        return empty | dict(zip(sizes, pieces, strict=True))
    classes = strata[rows] if strata is not None and spec.by in ("stratified", "fold") else None
    part = deal(own, classes, [*sizes.values()], mix(spec.seed, "split"))
    order = _shuffle(len(rows), spec.seed)  # `limit` and `per_class` take the first of the drawn order
    return empty | {name: rows[order[part[order] == number]] for number, name in enumerate(sizes)}


def _cut(rows: Tensor, counts: Mapping[str, int]) -> dict[str, Tensor]:
    """Cut rows into train and then the others; a share that rounds to nothing shows up as an empty split."""
    sizes = {"train": max(0, len(rows) - sum(counts.values()))} | dict(counts)
    ends = accumulate(sizes.values())
    return {name: rows[end - sizes[name] : end] for name, end in zip(sizes, ends, strict=True)}


def _stratified(rows: Tensor, counts: Mapping[str, int], strata: Tensor) -> dict[str, Tensor]:
    groups = strata[rows]
    parts: dict[str, Tensor] = {}
    _check_group_sizes(groups, len(counts) + 1, why=f"{len(counts) + 1} splits")
    for name, count in counts.items():
        taken = torch.zeros(len(rows), dtype=torch.bool)
        for group, quota in _quotas(groups, count).items():
            taken[(groups == group).nonzero().reshape(-1)[:quota]] = True
        parts[name] = rows[taken]
        rows, groups = rows[~taken], groups[~taken]
    return {"train": rows} | parts


def _quotas(groups: Tensor, count: int) -> dict[int, int]:
    """Share out `count` rows among groups by their size: the largest remainders get what rounding down leaves."""
    values, sizes = groups.unique(return_counts=True)
    exact = sizes.to(torch.float64) * count / max(len(groups), 1)
    quota = exact.floor().to(torch.int64)
    over = count - int(quota.sum())
    quota[(exact - quota).argsort(descending=True, stable=True)[:over]] += 1
    return dict(zip(values.tolist(), quota.tolist(), strict=True))


def _by_fold(spec: SplitSpec, rows: Tensor, strata: Tensor | None, groups: Tensor | None) -> dict[str, Tensor]:
    order = rows[_shuffle(len(rows), spec.seed)]
    units, what = (len(order), "rows") if groups is None else (len(groups.unique()), "groups")
    if units < spec.folds:
        what = f"there are fewer {what} than folds"
        raise UserError(what, argument="split.folds", expected=f"at most {units}", received=spec.folds)
    counts = {"val": round(spec.val * len(rows))} if spec.val > 0 else {}
    if groups is not None:
        held = deal(groups, strata, [1.0] * spec.folds, mix(spec.seed, "split")) == spec.fold
        return _in_groups(rows[~held], counts, groups, spec, strata) | {"test": rows[held]}
    if strata is not None:
        _check_group_sizes(strata, spec.folds, why=f"{spec.folds} folds")
        # Grouping by class before dealing out in turn gives every fold its share of every class.
        order = order[strata[order].argsort(stable=True)]
    dealt = torch.arange(len(order)) % spec.folds
    test, rest = order[dealt == spec.fold], order[dealt != spec.fold]
    rest = rest[_shuffle(len(rest), spec.seed)]
    parts = _stratified(rest, counts, strata) if strata is not None else _cut(rest, counts)
    return parts | {"test": test}


def _by_time_fold(spec: SplitSpec, times: Tensor) -> dict[str, Tensor]:
    """Cut all rows in the order of time, rows of one time together, and leave out what comes after the fold."""
    most = len(times.unique()) - 1
    if spec.folds > most:
        what = "there are too few different times for so many folds"
        raise UserError(what, argument="split.folds", expected=f"at most {most}", received=spec.folds, family="split")
    size = len(times) // (spec.folds + 1)
    before = len(times) - (spec.folds - spec.fold) * size
    counts = {"val": round(spec.val * before), "test": size, "later": len(times) - before - size}
    found = _in_groups(torch.arange(len(times)), counts, times, spec, None)
    return {name: rows for name, rows in found.items() if name != "later" and (name != "val" or spec.val > 0)}


def _first_of_each(rows: Tensor, count: int, strata: Tensor | None) -> Tensor:
    """Take the first `count` of the rows of each class, in their order."""
    if strata is None:
        fix = "data.split.limit counts rows of any kind"
        raise UserError("the data set has no classes to count by", argument="split.per_class", received=count, fix=fix)
    groups = strata[rows]
    chosen = [(groups == group).nonzero().reshape(-1)[:count] for group in groups.unique()]
    return rows[torch.cat(chosen).sort().values]


def _check_group_sizes(groups: Tensor, least: int, *, why: str) -> None:
    values, sizes = groups.unique(return_counts=True)
    for value, size in zip(values.tolist(), sizes.tolist(), strict=True):
        if size < least:
            what, fix = f"class {value} has too few rows for {why}", "data.split.by=random, or drop the class"
            raise UserError(what, argument="split", expected=f"{least} or more", received=size, fix=fix)


def _shuffle(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, "split")))
