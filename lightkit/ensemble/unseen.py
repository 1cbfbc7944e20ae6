"""Rows that members which were trained apart from each other may be compared and combined on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import torch

from lightkit.ensemble.oof import SPLITS, MemberPredictions, aligned, check_alike

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
