"""What is learnt of numbers to predict: standardised, logarithms, or normal scores, fitted on training rows only.

Shapes: N rows, T targets, K knots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError

KINDS = ("none", "standardize", "log", "quantile")
_KNOTS = 129


def check_scale(scale: float) -> float:
    """Return `scale` if targets can be divided by it.

    Raises:
        UserError: It is not above 0, or infinite.
    """
    if not 0 < scale < math.inf:
        what = "the target's unit must be above 0 and finite"
        raise UserError(what, argument="target_scale", received=scale)
    return scale


@dataclass(frozen=True)
class TargetTransform:
    """A map of targets that grows, by straight lines between knots; before and after them the outer lines go on.

    `standardize` is one line to mean 0 and deviation 1. `log` takes log(1 + y) before that. `quantile` has knots at
    quantiles of the training targets, which go to those of a normal distribution (as scikit-learn's
    `QuantileTransformer`, which cuts off what lies beyond them).

    Args:
        kind: One of `KINDS`.
        knots: `(T, K)`: values, rising; empty until it is fitted.
        scores: `(T, K)`: what they become, rising.
    """

    kind: str = "none"
    knots: Sequence[Sequence[float]] = ()
    scores: Sequence[Sequence[float]] = ()

    def __post_init__(self) -> None:
        check_choice("target_transform", self.kind, KINDS)

    def fit(self, y: Tensor) -> TargetTransform:
        """Fit it to the training targets `(N,)` or `(N, T)`.

        Raises:
            UserError: There is no logarithm of a target.
        """
        if self.kind == "none":
            return self
        columns = y.double().reshape(len(y), -1)
        if self.kind == "log" and bool((columns <= -1).any()):
            what, fix = "log takes log(1 + y), and a target is not above -1", "data.dataset.target_transform=quantile"
            raise UserError(what, argument="dataset.target_transform", received=float(columns.min()), fix=fix)
        columns = columns.log1p() if self.kind == "log" else columns
        fitted = [(_quantiles if self.kind == "quantile" else _moments)(column) for column in columns.T]
        return TargetTransform(self.kind, *zip(*fitted, strict=True))

    def __call__(self, y: Tensor) -> Tensor:
        """Return what is learnt of targets `(N,)` or `(N, T)`, in single precision."""
        if self.kind == "none":
            return y
        wide = y.double().log1p() if self.kind == "log" else y.double()
        return _mapped(wide, self.knots, self.scores).float()

    def undo(self, values: Tensor) -> Tensor:
        """Return targets of what is learnt `(N,)` or `(N, T)`, in the precision of that, but single at least."""
        if self.kind == "none":
            return values
        found = _mapped(values if values.element_size() > 2 else values.float(), self.scores, self.knots)
        return found.expm1() if self.kind == "log" else found


AS_IT_IS = TargetTransform()
"""Targets are learnt as they are."""


def _moments(column: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, deviation = column.mean(), column.std(correction=0)
    width = float(torch.where(deviation > mean.abs() * 1e-7, deviation, torch.ones_like(deviation)))
    return (float(mean), float(mean) + width), (0.0, 1.0)


def _quantiles(column: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    levels = torch.linspace(0, 1, _KNOTS, dtype=torch.float64)
    ordered = column.sort().values
    places = levels * (len(ordered) - 1)
    low = places.floor().long()
    values = torch.lerp(ordered[low], ordered[(low + 1).clamp_max(len(ordered) - 1)], places - low)
    knots, index = values.unique(return_inverse=True)
    if len(knots) < 2:
        return _moments(column)
    # Of equal values the middle of their levels; the outermost of a normal distribution are at infinity.
    middle = index.bincount(weights=levels) / index.bincount()
    scores = torch.special.ndtri(middle.clamp(0.5 / _KNOTS, 1 - 0.5 / _KNOTS))
    return tuple(knots.tolist()), tuple(scores.tolist())


def _mapped(values: Tensor, xs: Sequence[Sequence[float]], ys: Sequence[Sequence[float]]) -> Tensor:
    """Map values `(..., T)`, or those of one target of any shape, by straight lines between knots `(T, K)`."""
    whole = values if len(xs) > 1 else values.unsqueeze(-1)
    columns = []
    for column, x, y in zip(whole.unbind(-1), xs, ys, strict=True):
        x0, y0 = torch.tensor(x[:-1], dtype=torch.float64), torch.tensor(y[:-1], dtype=torch.float64)
        slopes = torch.tensor(y, dtype=torch.float64).diff() / torch.tensor(x, dtype=torch.float64).diff()
        table = torch.stack((x0, y0, slopes)).to(column)
        # Comparing with all knots is what every export format knows.
        segment = (column.unsqueeze(-1) >= table[0, 1:]).sum(-1)
        start, base, slope = table[:, segment]
        columns.append(base + (column - start) * slope)
    return torch.stack(columns, -1) if len(xs) > 1 else columns[0]


def count_classes(y: Tensor, named: Callable[[int], object] = int, *, plausible: int = 1000) -> int:
    """Return how many classes there are by their numbers.

    Args:
        y: Numbers of classes `(N, ...)`.
        named: What messages call a row.
        plausible: Classes up to which it is not asked whether most of them have a row.

    Raises:
        UserError: A number is so high that most classes below it have no row.
    """
    count = int(y.max()) + 1
    if count > plausible and count > 2 * (found := len(y.unique())):
        row = named(int((y == count - 1).reshape(len(y), -1).any(1).int().argmax()))
        what = f"row {row} is of class {count - 1}, but {found:,} classes have a row"
        fix = "number the classes from 0 without gaps, or state the number of classes"
        raise UserError(what, argument="", received=f"{count:,} classes", fix=fix)
    return count
