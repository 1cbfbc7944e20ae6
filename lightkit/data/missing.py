"""What is done about missing values in a CSV file, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern
from lightkit.data.table_columns import Table

STRATEGIES = ("mean", "median", "most_frequent", "constant")
"""Ways to fill a column, as scikit-learn's `SimpleImputer` calls them."""
_WAYS = ("error", "drop", *STRATEGIES)
_FILL = {False: 0.0, True: "missing_value"}
"""What `constant` fills in by default, in columns of numbers and of names; as in scikit-learn."""


@dataclass
class MissingPolicy:
    """What is done about missing values.

    Args:
        missing: For all columns, or by name pattern, of which the later win.
        fill_value: What `constant` fills in, for all columns or by name; None is 0, or a kind `missing_value`.
        features: Columns to predict from.
        targets: Columns to predict, which nothing fills.
        categorical: Features that hold names.

    Raises:
        UserError: There is no such way or column, or the way does not suit the column.
    """

    missing: str | Mapping[str, str]
    fill_value: Any
    features: Sequence[str]
    targets: Sequence[str]
    categorical: Sequence[str]
    ways: dict[str, str] = field(init=False)
    """What is done in each column."""

    def __post_init__(self) -> None:
        by_pattern = {"*": self.missing} if isinstance(self.missing, str) else dict(self.missing)
        for way in by_pattern.values():
            if way not in _WAYS:
                raise UserError("unknown", argument="missing", received=way, choices=_WAYS)
        self.ways = dict.fromkeys([*self.features, *self.targets], "error")
        for pattern, way in by_pattern.items():
            if pattern in self.ways:  # whatever signs are in the name of a column
                self._choose(pattern, way)
                continue
            fitting = Pattern(pattern, argument="missing")
            found = [name for name in self.ways if fitting.fits(name)]
            if not found:
                what = "the pattern matches nothing"
                raise UserError(what, argument="missing", received=pattern, choices=list(self.ways))
            self.ways |= {name: way for name in found if not (name in self.targets and way in STRATEGIES)}
        self._check_fill_value()

    def _choose(self, name: str, way: str) -> None:
        """Choose the way of the one column that is called so."""
        if name in self.targets and way in STRATEGIES:
            what = f"nothing can be filled in for the target {name!r}"
            raise UserError(what, argument="missing", received=way, choices=("error", "drop"))
        self.ways[name] = way
        if self._unsuited(name):
            raise self._no_number(name)

    def _no_number(self, name: str) -> UserError:
        way, choices = self.ways[name], ("error", "drop", "most_frequent", "constant")
        what = f"column {name!r} holds names, which have no {way}"
        fix = f'"data.dataset.missing={{*: {way}, {name}: most_frequent}}"'
        return UserError(what, argument="missing", received=way, choices=choices, fix=fix)

    def _check_fill_value(self) -> None:
        if self.fill_value is None:
            return
        filled = [name for name, way in self.ways.items() if way == "constant"]
        names = list(self.fill_value) if isinstance(self.fill_value, Mapping) else filled[:1]
        if not names or not {*names} <= {*filled}:
            what, fix = "this is for columns that are filled with a constant", "data.dataset.missing=constant"
            raise UserError(what, argument="fill_value", received=self.fill_value, choices=filled, fix=fix)

    def filled(self, name: str) -> bool:
        """Tell whether missing values of a column are filled in."""
        return self.ways[name] in STRATEGIES and not self._unsuited(name)

    def constant(self, name: str) -> float | str:
        """Return what `constant` fills in.

        Raises:
            UserError: It is no number, for a column of numbers.
        """
        by_name = isinstance(self.fill_value, Mapping)
        value = self.fill_value.get(name) if by_name else self.fill_value
        names = name in self.categorical
        value = _FILL[names] if value is None else value
        if names:
            return str(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            what = f"column {name!r} holds numbers"
            raise UserError(what, argument="fill_value", expected="a number", received=value)
        return float(value)

    def applied(self, table: Table) -> tuple[Table, list[str]]:
        """Return the table without the rows that are left out, and a line about them.

        Raises:
            UserError: No row is left.
        """
        lacking = _lacking(table, [name for name, way in self.ways.items() if way == "drop"])
        rows = _any(table, lacking)
        if rows.all():
            fix = "leave such columns out of data.dataset.features, or fill the values in"
            what, received = f"{table.path}: every row lacks a value", ", ".join(lacking)
            raise UserError(what, argument="missing", received=received, fix=fix)
        if not lacking:
            return table, []
        told = f"{rows.sum():,} of the {len(table):,} rows of {table.path} are left out, they lack values in: "
        return table.without(rows), [told + _counted(lacking)]

    def problems(self, table: Table) -> Iterator[UserError]:
        """Yield the errors of values that are missing and must not be: one for each kind of column."""
        wrong = _lacking(table, [name for name, way in self.ways.items() if way == "error" or self._unsuited(name)])
        yield from (self._no_number(name) for name in wrong if self._unsuited(name))
        for is_target in (False, True):
            suited = {name: rows for name, rows in wrong.items() if not self._unsuited(name)}
            own = {name: rows for name, rows in suited.items() if (name in self.targets) == is_target}
            if own:
                yield self._refused(table, own, is_target=is_target)

    def _unsuited(self, name: str) -> bool:
        return name in self.categorical and self.ways[name] in ("mean", "median")

    def _refused(self, table: Table, holes: Mapping[str, np.ndarray], *, is_target: bool) -> UserError:
        """Return the error of columns that lack values.

        Args:
            table: The table.
            holes: Rows without a value by column.
            is_target: Whether they are columns to predict.
        """
        name, rows = next(iter(holes.items()))
        place, cell = table.cell(int(rows.argmax()), name)
        problem = "is infinite" if "inf" in cell.lower() else "has no value"
        more = f"; rows without a value: {_counted(holes)}" if len(holes) > 1 else ""
        others = _any(table, _lacking(table, list(self.ways))).sum()
        fill = "" if is_target else "; mean, median, most_frequent or constant fill the values in"
        what, expected = f"{place}: column {name!r} {problem}{more}", "a finite number or a name"
        fix = f"data.dataset.missing=drop leaves such rows out ({others} of {len(table)}){fill}"
        if is_target and self.missing in STRATEGIES:
            fix = f'"data.dataset.missing={{*: {self.missing}, {name}: drop}}" leaves such rows out'
            fix += f" ({_any(table, holes).sum()} of {len(table)})"
        if empty := [name for name, rows in holes.items() if rows.all()]:
            fix = f"leave {', '.join(empty)} out of data.dataset.features: no row has a value there; {fix}"
        return UserError(what, argument=table.source.argument, expected=expected, received=cell, fix=fix)


def _lacking(table: Table, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the rows without a value in each column that has any, in the order in which a reader finds them."""
    found = {name: rows for name in names if (rows := table.columns[name].missing).any()}
    return dict(sorted(found.items(), key=lambda item: (item[1].argmax(), item[0])))


def _any(table: Table, lacking: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.any([np.zeros(len(table), dtype=bool), *lacking.values()], axis=0)


def _counted(lacking: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {rows.sum():,}" for name, rows in lacking.items())
