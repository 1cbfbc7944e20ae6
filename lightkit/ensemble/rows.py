"""Which rows a member of an ensemble trains on, and which it predicts without having seen them.

Both are functions of seed, number and fold: nothing is stored, and another process draws the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.data.groups import deal
from lightkit.data.splits import SplitSpec, split_rows
from lightkit.ensemble.oof import SPLITS, MemberPredictions, aligned, check_alike

KINDS = ("all", "bootstrap", "folds")


class MemberRows(NamedTuple):
    """What a member trains on, and what it predicts without having seen it; both in rising order.

    `all` holds nothing out, `bootstrap` the rows that were not drawn. In order of time no fold holds out the earliest.
    """

    training: Tensor
    held_out: Tensor


def member_rows(
    rows: Tensor,
    kind: str,
    draw: int = 0,
    index: int = 0,
    *,
    folds: int = 5,
    fold: int | None = None,
    repeat: int = 0,
    strata: Tensor | None = None,
    groups: Tensor | None = None,
    ordered: bool = False,
) -> MemberRows:
    """Divide rows into those that a member trains on and those that it holds out.

    Args:
        rows: `(N,)` int64: the rows to choose from, such as a run's training rows.
        kind: `all`; `bootstrap`: as many as there are, drawn with replacement; `folds`: all but those of a fold.
        draw: Seed, the same for all members.
        index: Number of the member, for `bootstrap`.
        folds: Number of folds.
        fold: The fold that the member holds out, from 0; needed for `folds`.
        repeat: Which of several partitions into folds; each deals the rows out anew.
        strata: A class for every row of the data set, int64, whose shares the folds keep.
        groups: A group for every row of the data set, int64. No group is both trained on and held out: `bootstrap`
            draws groups, and `folds` deals them out.
        ordered: The rows are in order of time: a fold is held out by a member that trains on earlier rows only, as
            with scikit-learn's `TimeSeriesSplit`.

    Raises:
        UserError: There are fewer rows, groups or rows of a class than folds, or the order of time cannot be kept.
    """
    check_choice("rows", kind, KINDS)
    rows = rows.sort().values
    if kind == "all":
        return MemberRows(rows, rows[:0])
    if kind == "bootstrap":
        if ordered:
            fix = "rows=folds, or rows=all"
            raise UserError("a random draw does not keep the order of time", argument="rows", received=kind, fix=fix)
        return _bootstrap(rows, draw, index, groups)
    if fold is None:
        raise UserError("which fold is held out has to be said", argument="fold", expected=f"0 to {folds - 1}")
    check_range("folds", folds, low=2, what="too few folds")
    check_range("fold", fold, low=0, high=folds - 1, what="there is no such fold")
    check_range("repeat", repeat, low=0)
    if ordered:
        return _by_time(rows, folds, fold, repeat, groups)
    _check_enough(rows, folds, strata, groups)
    seed = mix(draw, "folds", repeat)
    classes = strata[rows] if strata is not None else None
    if groups is not None:
        held = deal(groups[rows], classes, [1.0] * folds, seed) == fold
        return MemberRows(rows[~held], rows[held])
    spec = SplitSpec(by="fold", val=0, seed=seed, folds=folds, fold=fold)
    parts = split_rows(spec, len(rows), strata=classes)
    return MemberRows(rows[parts["train"]], rows[parts["test"]])


def cut_holdout(
    rows: Tensor,
    share: float,
    draw: int,
    *,
    strata: Tensor | None = None,
    groups: Tensor | None = None,
    ordered: bool = False,
) -> MemberRows:
    """Cut rows off before any fold is dealt out, for a decision that no member may have a part in.

    Args:
        rows: `(N,)` int64: the rows to choose from.
        share: What part of them; the nearest of 1/2, 1/3, 1/4 and so on is taken, and nothing for 0.
        draw: Seed of the draw.
        strata: See `member_rows`; they are left aside where a class has too few rows.
        groups: See `member_rows`.
        ordered: The rows are in order of time: the latest ones are cut off.

    Raises:
        UserError: There are fewer rows or groups than parts.
    """
    check_range("holdout", share, low=0, high=0.5, what="not a share of the training rows that can be held out")
    if share == 0:
        return MemberRows(rows.sort().values, rows[:0])
    parts = round(1 / share)
    if strata is not None and int(strata[rows].unique(return_counts=True)[1].min()) < parts:
        strata = None
    chosen: dict[str, Any] = {"strata": strata, "groups": groups, "ordered": ordered}
    try:
        return member_rows(rows, "folds", mix(draw, "holdout"), folds=parts, fold=parts - 1, **chosen)
    except UserError as error:
        what = f"no part of 1/{parts} of the training rows can be held out: {error.what}"
        raise UserError(what, argument="holdout", received=share, fix="a larger share, or 0 without a guard") from error


def _bootstrap(rows: Tensor, draw: int, index: int, groups: Tensor | None) -> MemberRows:
    generator = torch.Generator().manual_seed(mix(draw, "bootstrap", index))
    unit = torch.arange(len(rows)) if groups is None else groups[rows].unique(return_inverse=True)[1]
    count = int(unit.max()) + 1 if len(unit) else 0
    times = torch.randint(max(count, 1), (count,), generator=generator).bincount(minlength=count)[unit]
    return MemberRows(rows.repeat_interleave(times), rows[times == 0])


def _by_time(rows: Tensor, folds: int, fold: int, repeat: int, groups: Tensor | None) -> MemberRows:
    """Hold out one of the last `folds` of `folds + 1` parts, and train on what is before it."""
    if repeat:
        raise UserError("in order of time the folds are always the same", argument="repeat", expected="0")
    if len(rows) <= folds:
        what = "there are too few rows for folds in order of time, which need one part more to begin with"
        raise UserError(what, argument="folds", expected=f"at most {len(rows) - 1}", received=folds)
    size = len(rows) // (folds + 1)
    start = len(rows) - (folds - fold) * size
    before, held = rows[:start], rows[start : start + size]
    if groups is not None:
        before = before[~torch.isin(groups[before], groups[held])]
        if not len(before):
            what = f"all rows before fold {fold} belong to groups that it holds out"
            raise UserError(what, argument="groups", fix="fewer folds, or order of time without groups")
    return MemberRows(before, held)


def _check_enough(rows: Tensor, folds: int, strata: Tensor | None, groups: Tensor | None) -> None:
    if len(rows) < folds:
        what, most = "there are fewer rows than folds", f"at most {len(rows)}"
        raise UserError(what, argument="folds", expected=most, received=folds)
    if groups is not None and (count := len(groups[rows].unique())) < folds:
        what = f"there are fewer groups ({count}) than folds ({folds}); rows with the same inputs are one group, too"
        raise UserError(what, argument="groups", fix=f"folds={count}" if count > 1 else "folds without groups")
    if strata is None:
        return
    values, sizes = strata[rows].unique(return_counts=True)
    if int(sizes.min()) < folds:
        rare = int(values[sizes.argmin()])
        what = f"class {rare} has fewer rows than there are folds"
        raise UserError(what, argument="folds", expected=f"at most {int(sizes.min())}", received=folds)


_TRAIN, _VAL, _TEST = range(len(SPLITS))


def unseen_by_all(members: Sequence[MemberPredictions]) -> list[MemberPredictions]:
    """Keep the rows that every member predicted without having trained on them, and give each one split for all.

    Where the members were split differently, a row is of the test split only if it is for all of them: another one has
    selected the epoch of a member, so it may select members and weights too. A row that all left out of their training
    rows stays one of the training split.

    Args:
        members: Their predictions.

    Returns:
        The predictions for the same rows in the same order; none where every row was trained on by some member.

    Raises:
        UserError: There is no member, or they are of other data, another task or other classes.
    """
    for member in members[1:]:
        check_alike(members[0], member)
    known = [member.take(member.predicted) for member in members]
    if not known:
        return aligned(known)
    rows = reduce(lambda left, right: left[torch.isin(left, right)], [member.rows for member in known])
    chosen = [member.take(torch.isin(member.rows, rows)) for member in known]
    chosen = [member.take(member.rows.argsort()) for member in chosen]
    if not len(rows):
        return chosen
    splits = torch.stack([member.split for member in chosen])
    split = torch.full_like(splits[0], _VAL)
    for same in (_TRAIN, _TEST):
        split[(splits == same).all(0)] = same
    return aligned([replace(member, split=split) for member in chosen])
