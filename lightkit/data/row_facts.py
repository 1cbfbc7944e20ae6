"""What a data set tells of each row beside inputs and targets: its group, its time, how much it counts.

Shapes: N rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError
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
