"""Filling missing values of a table with what was fitted to its training rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError


@dataclass(frozen=True)
class Gaps:
    """A column of a table whose missing values are to be filled.

    Args:
        name: Name of the column.
        strategy: One of `STRATEGIES`.
        first: Its first feature; missing values are NaN there, in all features of the column.
        kinds: Values of a categorical column, one 0/1 feature each; None for a column of numbers.
        constant: What `constant` fills in, one of `kinds` where there are any.
        size: Number of its features, where it has no `kinds`.
    """

    name: str
    strategy: str
    first: int
    kinds: tuple[str, ...] | None = None
    constant: float | str = 0.0
    size: int = 1

    @property
    def features(self) -> slice:
        """Return the places of its features."""
        return slice(self.first, self.first + (self.size if self.kinds is None else len(self.kinds)))

    def fitted(self, x: Tensor) -> list[float]:
        """Find the value to fill in for each of its features.

        Args:
            x: The training rows `(N, F)`.

        Raises:
            UserError: None of them has a value.
        """
        if self.strategy == "constant":
            return [float(kind == self.constant) for kind in self.kinds or ()] or [float(self.constant)] * self.size
        values = x[:, self.features]
        seen = values[~values[:, :1].isnan().any(1)].to(torch.float64)
        if not seen.numel():
            what = f"column {self.name!r} has no value in any of the {len(x):,} training rows"
            fix = "leave it out of data.dataset.features, or fill it with a constant"
            raise UserError(what, argument="dataset.missing", received=self.strategy, fix=fix)
        if self.strategy == "mean":
            found = seen.mean(0)
        elif self.strategy == "median":
            ordered = seen.sort(0).values
            found = (ordered[(len(seen) - 1) // 2] + ordered[len(seen) // 2]) / 2
        elif self.kinds is not None:
            found = torch.nn.functional.one_hot(seen.sum(0).argmax(), len(self.kinds))
        else:
            kinds, counts = seen.unique(dim=0, return_counts=True)
            found = kinds[counts.argmax()]  # of several the smallest, as in scikit-learn
        return [float(value) for value in found.to(torch.float32)]

    def describe(self, values: Sequence[float]) -> str:
        """Put strategy and fitted values in words: `median 3.5`."""
        shown = f"{values[0]:g}" if self.kinds is None else self.kinds[max(range(len(values)), key=values.__getitem__)]
        return f"{self.strategy} {shown}"


class Imputer:
    """Fills missing values like scikit-learn's `SimpleImputer`, column by column.

    Args:
        columns: The columns to fill.
        add_indicator: Add a 0/1 feature for each column that lacks values in training rows: 1 where one was filled in.
    """

    def __init__(self, columns: Sequence[Gaps], *, add_indicator: bool = False) -> None:
        self.columns, self.add_indicator = tuple(columns), add_indicator

    def fit(self, x: Tensor) -> Filling:
        """Find what to fill in.

        Args:
            x: The training rows `(N, F)`, NaN where a value is missing.

        Raises:
            UserError: A column has no value in these rows.
        """
        values = {gaps.name: gaps.fitted(x) for gaps in self.columns}
        lacking = [gaps.name for gaps in self.columns if self.add_indicator and x[:, gaps.first].isnan().any()]
        return Filling(self.columns, values, lacking)

    def load(self, state: Mapping[str, Any]) -> Filling:
        """Restore what was fitted before.

        Args:
            state: From `Filling.state_dict`.

        Raises:
            UserError: It is for other columns.
        """
        values, indicators = state["values"], state["indicators"]
        own = {gaps.name: gaps.features.stop - gaps.first for gaps in self.columns}
        if own != {name: len(filled) for name, filled in values.items()} or not {*indicators} <= {*own}:
            what = "the columns to fill are not those that the run was trained with"
            expected = ", ".join(f"{name} ({len(filled)} features)" for name, filled in values.items()) or "none"
            received = ", ".join(f"{name} ({count} features)" for name, count in own.items())
            raise UserError(what, argument="dataset.missing", expected=expected, received=received)
        return Filling(self.columns, values, indicators)


class Filling:
    """Fitted values to fill in.

    Args:
        columns: The columns.
        values: Values by column, one a feature of it.
        indicators: Columns that get a feature that tells where a value was filled in.
    """

    def __init__(self, columns: Sequence[Gaps], values: Mapping[str, list[float]], indicators: Sequence[str]) -> None:
        self.columns, self.values, self.indicators = tuple(columns), dict(values), list(indicators)

    def __call__(self, x: Tensor) -> Tensor:
        """Return a filled copy of rows `(N, F)`, with the indicators after the other features."""
        filled, added = x.clone(), []
        for gaps in self.columns:
            missing = x[:, gaps.first].isnan()
            filled[missing, gaps.features] = x.new_tensor(self.values[gaps.name])
            if gaps.name in self.indicators:
                added.append(missing.to(x.dtype)[:, None])
        return torch.cat([filled, *added], 1)

    def note(self, x: Tensor) -> str | None:
        """Return a line for people about the values that are filled in; None where none is.

        Args:
            x: The rows `(N, F)` before.
        """
        counts = {gaps: int(x[:, gaps.first].isnan().sum()) for gaps in self.columns}
        told = [
            f"{gaps.name} {count:,} ({gaps.describe(self.values[gaps.name])})"
            for gaps, count in counts.items()
            if count
        ]
        more = f"; with an indicator each: {', '.join(self.indicators)}" if self.indicators else ""
        return f"missing values filled in: {', '.join(told)}{more}" if told else None

    def state_dict(self) -> dict[str, Any]:
        """Return what was fitted, as plain values."""
        first = {gaps.name: gaps.first for gaps in self.columns}
        return {"values": self.values, "indicators": self.indicators, "first": first}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Filling:
        """Return what fills in values as `state_dict` says, without the data set.

        Raises:
            LookupError: An earlier version has written it, which did not keep the places of the columns.
        """
        sizes = {name: len(values) for name, values in state["values"].items()}
        gaps = [Gaps(name, "", state["first"][name], size=size) for name, size in sizes.items()]
        return cls(gaps, state["values"], state["indicators"])
