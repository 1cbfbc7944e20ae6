"""Rows of a data set that somebody has named for a purpose, such as the rows of each split: judged in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError, UserErrors
from lightkit.common.names import KNOWN, SPLIT_NAMES, split_named
from lightkit.common.reading import UnreadableError, read_text

_KINDS = "row numbers as a tensor, list, tuple, range or NumPy array; a boolean mask over all rows; or a slice"
_SHOWN = 5


def split_sets(sets: Any, num_rows: int, *, argument: str = "splits") -> dict[str, Tensor]:
    """Return the rows of the splits that a data set brings with it, train included: where it is not named, the rest.

    Args:
        sets: Rows by the name of their split, see `SPLIT_NAMES`; None and an empty mapping name none.
        num_rows: Rows of the data set.
        argument: What messages call the mapping.

    Returns:
        Rows by `train`, `val` and `test`, in the order in which they are given; empty where no split is named.

    Raises:
        UserError: A name is unknown or there twice, or the rows cannot be taken as they are; one report of all that.
    """
    if sets is None or (isinstance(sets, Mapping) and not sets):
        return {}
    if not isinstance(sets, Mapping):
        what, expected = "not the rows of each split", 'a mapping such as {"train": rows, "val": rows, "test": rows}'
        raise UserError(what, argument=argument, expected=expected, received=type(sets).__name__)
    given = {name: rows for name, rows in sets.items() if rows is not None}
    found, problems = _by_split(given, argument)
    named = {split: given[name] for split, name in found.items()}
    try:
        rows = judge_rows(named, num_rows, argument=argument, shown=found)
    except UserErrors as error:
        raise UserErrors([*problems, *error.errors]) from None
    if rows and "train" not in rows and not problems:
        taken = torch.zeros(num_rows, dtype=torch.bool)
        taken[torch.cat(list(rows.values()))] = True
        rows["train"] = (~taken).nonzero().reshape(-1)
        if not len(rows["train"]):
            problems.append(_nothing_left(argument, rows))
    if problems:
        raise UserErrors(problems)
    return {split: rows[split] for split in SPLIT_NAMES if split in rows}


def listed_rows(files: Mapping[str, str], source: Any) -> dict[str, list[int]]:
    """Read which rows belong to which split from files with a row a line: its name in the data set, or its number.

    Args:
        files: The file of each split; without one of `train`, all other rows are its.
        source: The data set; its attribute `row_names` has the names.

    Raises:
        UserError: A file cannot be read, a line names no row, or a row is in none of the files.
    """
    names: Any = getattr(source, "row_names", None) or getattr(getattr(source, "base", None), "row_names", None)
    places = {str(name): place for place, name in enumerate(names or range(len(source)))}
    found = dict[str, list[int]]()
    for split, path in files.items():
        key = f"split.files.{split}"
        try:
            lines = [line.strip() for line in read_text(Path(path).expanduser()).splitlines() if line.strip()]
        except (OSError, UnreadableError) as error:
            raise UserError(f"cannot be read: {error}", argument=key, received=path, family="file") from error
        odd = [line for line in lines if line not in places]
        if odd:
            what, expected = f"{path}: no rows of the data set", f"a row a line, such as {next(iter(places))}"
            raise UserError(what, argument=key, expected=expected, received=_some(odd), family="split")
        found[split] = [places[line] for line in lines]
    named = {row for rows in found.values() for row in rows}
    lost = [name for name, place in places.items() if place not in named]
    if lost and any(split_named(split) == "train" for split in files):
        what, fix = "rows are in none of the files", "leave out the file of train, whose rows are all others then"
        raise UserError(what, argument="split.files", received=_some(lost), fix=fix, family="split")
    return found


def judge_rows(
    sets: Mapping[str, Any], num_rows: int, *, argument: str, shown: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Return sets of rows as tensors; refuse those that are empty, out of range, repeat rows or share some.

    Args:
        sets: Rows by the name of their set, as numbers, a mask or a slice.
        num_rows: Rows of the data set.
        argument: What messages call the sets.
        shown: The names that messages call the sets by, where these differ.

    Returns:
        `(N,)` int64 rows by name, in the order in which they are given.

    Raises:
        UserErrors: Everything that is wrong, in one report.
    """
    called = {name: (shown or {}).get(name, name) for name in sets}
    names = {name: f"{argument}[{own!r}]" for name, own in called.items()}
    found, problems = dict[str, Tensor](), list[UserError]()
    for name, rows in sets.items():
        try:
            found[name] = _as_rows(rows, num_rows, argument=names[name])
        except UserError as error:
            problems.append(error)
    for name, rows in found.items():
        problems += _wrong_rows(rows, num_rows, argument=names[name])
    for one, other in combinations(found, 2):
        both = found[one].unique()
        both = both[torch.isin(both, found[other])]
        if len(both):
            problems.append(
                UserError(
                    f"{_told(both)} in {called[one]!r} too",
                    argument=names[other],
                    fix="each row in one of them: a score on rows that were learnt from says nothing about new ones",
                    family="split",
                )
            )
    if problems:
        raise UserErrors(problems)
    return found


def _by_split(given: Mapping[Any, Any], argument: str) -> tuple[dict[str, str], list[UserError]]:
    """Return the given name of each split, and what is wrong with the names."""
    found, problems = dict[str, str](), list[UserError]()
    for name in given:
        split = split_named(name)
        if split is None:
            what = "no name of a split, so its rows would be trained on"
            fix = "one of these names; rows that belong to no split are left out where `train` is named too"
            choices = KNOWN
            problems.append(UserError(what, argument=argument, received=name, choices=choices, fix=fix, family="split"))
        elif split in found:
            what = f"two names for the {split} split"
            received = f"{found[split]} and {name}"
            fix = "join their rows under one name, or leave one out"
            problems.append(UserError(what, argument=argument, received=received, fix=fix, family="split"))
        else:
            found[split] = name
    return found, problems


def _as_rows(rows: Any, num_rows: int, *, argument: str) -> Tensor:
    """Return rows as `(N,)` int64 in the order in which they are given."""
    if isinstance(rows, slice):
        rows = _of_slice(rows, num_rows, argument)
    try:
        if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, (Tensor, np.ndarray, Iterable)):
            raise TypeError
        given = rows.detach().cpu() if isinstance(rows, Tensor) else torch.from_numpy(_as_array(rows))
    except (TypeError, ValueError, OverflowError):
        raise _no_rows(argument, f"a {type(rows).__name__} of something else") from None
    if given.ndim != 1:
        raise _no_rows(argument, f"shape {tuple(given.shape)}")
    if given.dtype == torch.bool:
        if len(given) != num_rows:
            expected = f"{num_rows:,} values, one for each row of the data set"
            what = "the mask is of another length than the data set"
            raise UserError(what, argument=argument, expected=expected, received=len(given), family="split")
        return given.nonzero().reshape(-1)
    if given.is_floating_point() or given.is_complex():
        raise _no_rows(argument, f"values of type {str(given.dtype).removeprefix('torch.')}")
    return given.to(torch.int64)


def _as_array(rows: Any) -> np.ndarray:
    """Return a NumPy array of what holds numbers; of an empty one whole numbers."""
    found = np.asarray(rows if isinstance(rows, np.ndarray) else list(rows))
    if not found.size and found.ndim == 1:
        return found.astype(np.int64)
    if found.dtype.kind not in "biuf":
        raise TypeError
    return found.astype(np.int64) if found.dtype.kind == "u" else found


def _of_slice(rows: slice, num_rows: int, argument: str) -> range:
    """Return the rows of a slice; unlike a list, it must not reach beyond them."""
    for end in (rows.start, rows.stop):
        if end is not None and not -num_rows <= end <= num_rows:
            what = "the slice reaches beyond the rows of the data set"
            raise UserError(what, argument=argument, expected=f"at most {num_rows}", received=end, family="split")
    return range(num_rows)[rows]


def _no_rows(argument: str, received: str) -> UserError:
    return UserError("not rows of the data set", argument=argument, expected=_KINDS, received=received, family="split")


def _wrong_rows(rows: Tensor, num_rows: int, *, argument: str) -> list[UserError]:
    """Return what is wrong with one set of rows by itself."""
    outside = rows[(rows < 0) | (rows >= num_rows)].unique()
    values, counts = rows.unique(return_counts=True)
    twice, problems = values[counts > 1], list[UserError]()
    if not len(rows):
        problems.append(
            UserError("it has no rows", argument=argument, fix="leave it out, or name rows", family="split")
        )
    if len(outside):
        what, expected = f"{_told(outside)} not in the data set", f"0 to {num_rows - 1}"
        problems.append(UserError(what, argument=argument, expected=expected, family="split"))
    if len(twice):
        what = f"{_told(twice)} there more than once"
        problems.append(UserError(what, argument=argument, fix="each row once", family="split"))
    return problems


def _nothing_left(argument: str, rows: Mapping[str, Tensor]) -> UserError:
    taken = " and ".join(f"{len(own):,} of {name}" for name, own in rows.items() if len(own))
    fix = "fewer rows in the others: what they leave is the train split"
    return UserError("nothing is left to train on", argument=argument, received=taken, fix=fix, family="split")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", … ({len(names):,} in all)" if len(names) > _SHOWN else "")


def _told(rows: Tensor) -> str:
    """Word how many rows there are, with the first few, as the beginning of a sentence about them."""
    if len(rows) == 1:
        return f"row {int(rows)} is"
    some = ", ".join(map(str, rows[:_SHOWN].tolist()))
    return f"{len(rows):,} rows ({some}{', …' if len(rows) > _SHOWN else ''}) are"
