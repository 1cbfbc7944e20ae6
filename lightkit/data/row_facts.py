"""What a data set tells of each row beside inputs and targets: its group, its time, how much it counts.

Shapes: N rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.text import counted
from lightkit.data.normalize import Normalizer
from lightkit.data.tensors import DataInfo, TensorData

USUAL, TIMES, WEIGHTS, LENGTHS = "groups", "times", "weights", "lengths"
"""The attributes by which a data set tells group, time, weight and length of each row, where nothing else is said."""


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
    values = row_values(source, name, usual=TIMES if name == TIMES else "", argument="split.time")
    if values is None:
        fix = "data.dataset.time_column=COLUMN of a table, data.split.time=FEATURE, or another data.split.by"
        what = "the data set does not tell the time of each row"
        raise UserError(what, argument="split.time", received=name, fix=fix, family="split")
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
        what = "the data set has no such attribute and no such feature"
        choices = [usual or TIMES, *dict.fromkeys(feature.partition("=")[0] for feature in _features(source))]
        fix = "data.dataset.group_column, time_column and weight_column name columns of a table that are no features"
        raise UserError(what, argument=argument, family="split", received=name, choices=choices, fix=fix)
    if found is None:
        return None
    values = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(_listed(found))
    if values.shape != (len(source),):
        what, fix = f"`{name}` of the data set has to name one {_kind(argument)} for each row", f"data.{argument}=null"
        received = f"a value of shape {values.shape}" if values.ndim != 1 else counted(len(values), "value")
        facts: dict[str, Any] = {
            "expected": counted(len(source), "value"),
            "received": received,
            "fix": f"{fix} leaves it aside",
        }
        raise UserError(what, argument=argument, family="split", **facts)
    return values


def row_column(source: Any, name: str, normalizer: Normalizer | None, *, key: str) -> np.ndarray:
    """Return what tells rows apart: the cells of a column of a table as they are there, `(N,)`.

    Args:
        source: The data set.
        name: A column of its table, a feature, or an attribute with a value for each row.
        normalizer: What has scaled its features; None where nothing has.
        key: What asks for it, for the message.

    Raises:
        UserError: There is none of that name.
    """
    readers, features = getattr(getattr(source, "base", source), "column_readers", {}), _features(source)
    if name in readers:
        values = np.array(_listed(readers[name]()), dtype=object)
        # Where the data have changed, a run has numbers of its own.
        values = values[torch.as_tensor(getattr(source, "numbers", range(len(values)))).clamp(min=0).numpy()]
    elif name in features:
        known = source.x if normalizer is None else source.x * normalizer.scale + normalizer.shift
        values = known[:, features.index(name)].numpy()
    else:
        found = _attribute(source, name)
        values = np.array(found.tolist() if isinstance(found, Tensor) else _listed(found), dtype=object)
    if values.shape != (len(source),):
        what, choices = "the data set tells no such thing of each row", ["target", *(readers or features)]
        raise UserError(what, key=key, received=name, choices=choices)
    return values


def row_numbers(source: Any, name: str | None, *, argument: str) -> Tensor | None:
    """Return a number for each row, `(N,)` float64, 0 or above, such as its weight or length; None without.

    Args:
        source: The data set.
        name: An attribute of it (`weights` and `lengths` may be missing), or a feature of a table.
        argument: What messages call the name.

    Raises:
        UserError: There is no such attribute or feature, or a row has no such number.
    """
    values = row_values(source, name, usual=LENGTHS if name == LENGTHS else WEIGHTS, argument=argument)
    if values is None:
        return None
    wrong = [row for row, value in enumerate(values.tolist()) if not _is_amount(value)]
    if wrong:
        what = f"row {wrong[0]} has no number of 0 or more in `{name}` ({counted(len(wrong), 'row')} in all)"
        raise UserError(what, argument=argument, received=values[wrong[0]], family="data-unreadable")
    return torch.from_numpy(values.astype(np.float64))


def row_weights(source: Any, name: str | None, rows: Tensor) -> Tensor | None:
    """Return how much each row counts, `(N,)` float32, on average 1 over some rows; None where all count the same.

    Args:
        source: The data set.
        name: See `row_numbers`.
        rows: The training rows.

    Raises:
        UserError: See `row_numbers`; or none of these rows counts.
    """
    found = row_numbers(source, name, argument="weights")
    if found is not None and not found[rows].sum() > 0:
        raise UserError("all training rows have a weight of 0", argument="weights", fix="data.weights=null")
    return None if found is None else (found / found[rows].mean()).float()


def known_targets(source: Any) -> Tensor | None:
    """Return the target of each row, `(N, ...)`; None where the data set does not tell all at once."""
    given = (getattr(source, name, None) for name in ("y", "targets", "strata"))
    return next((found for found in given if isinstance(found, Tensor) and len(found) == len(source)), None)


def class_shares(source: Any, rows: Tensor) -> tuple[float, ...]:
    """Return which share of some rows is of each class, or has each label; empty where that is not known."""
    y, info = known_targets(source), source.info
    if y is None or info.task not in ("multiclass", "binary", "multilabel"):
        return ()
    classes = info.task == "multiclass"
    found = y[rows].bincount(minlength=info.num_classes) if classes else y[rows].reshape(len(rows), -1).sum(0)
    return tuple((found.double() / len(rows)).tolist())


def balanced(info: DataInfo) -> dict[str, list[float]]:
    """Return the arguments of a loss by which all classes count the same, as `compute_class_weight` of scikit-learn.

    A class counts by the mean number of training rows of a class over its own; a positive label by the ratio of
    negative to positive ones. What no training row has, or each of them, counts 1.

    Args:
        info: Facts about the data.

    Raises:
        UserError: It is not known how many rows are of each class.
    """
    if not info.class_shares:
        fix = "weights as a list; a data set of classes tells that of each row in an attribute `targets`"
        what = f"the classes of the training rows are not known ({info.task} targets)"
        raise UserError(what, key="loss.weight", received="balanced", fix=fix, family="loss-or-metric")
    if info.task == "multiclass":
        present = sum(share > 0 for share in info.class_shares)
        return {"weight": [round(1 / (present * share), 6) if share else 1.0 for share in info.class_shares]}
    return {"pos_weight": [round(1 / share - 1, 6) if 0 < share < 1 else 1.0 for share in info.class_shares]}


def _is_amount(value: Any) -> bool:
    with suppress(ValueError, TypeError):
        return 0 <= float(value) < math.inf
    return False


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
        what, expected = f"row {int(without.argmax())} has no {kind} in `{name}`", f"a {kind} for each row"
        received = f"{int(without.sum())} of {counted(len(values), 'row')} without one"
        fix = f"give each of these rows a {kind} of its own, or leave the rows out"
        raise UserError(what, argument=argument, family="split", expected=expected, received=received, fix=fix)
    values = values.astype(str) if values.dtype == object else values
    return torch.from_numpy(np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64))


def _kind(argument: str) -> str:
    return argument.rpartition(".")[2].removesuffix("s")


def _listed(found: Any) -> Any:
    return found if isinstance(found, np.ndarray) or not isinstance(found, Iterable) else list(found)
