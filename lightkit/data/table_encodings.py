"""How the cells of a column become features: one 0/1 feature a name, numbers of names, parts of dates, hashed words.

Shapes: N rows, K different cells, W features of a column, F features of all columns.
"""

from __future__ import annotations

import math
import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar

import numpy as np

from lightkit.common.text import is_missing
from lightkit.data.csv_columns import NameColumn, NumberColumn

_AT_ONCE = 1 << 16
"""Rows that are encoded at once."""


@dataclass(frozen=True)
class Encoding:
    """Features of a column by its different cells; derive a class for another way."""

    kind: ClassVar[str]
    """Under what name a run keeps it."""
    unit: ClassVar[str] = ""
    """What its cells are, where not all cells are such."""

    @property
    def parts(self) -> list[str]:
        """Return what each feature is called, after the name of the column; `W` of them."""
        raise NotImplementedError

    def features(self, cells: Sequence[str]) -> np.ndarray:
        """Return the features of cells, `(K, W)` float32."""
        raise NotImplementedError

    def wrong(self, column: NameColumn) -> np.ndarray:
        """Return which rows hold a cell that cannot be encoded, `(N,)`."""
        return np.zeros(len(column), dtype=bool)

    def state_dict(self) -> dict[str, Any]:
        """Return what a run keeps of it, in plain values."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class OneHot(Encoding):
    """One 0/1 feature a name; another name is none of them.

    Args:
        names: The names, in order.
    """

    names: Sequence[str]
    kind = "categorical"

    @property
    def parts(self) -> list[str]:
        """Return the names."""
        return [f"={name}" for name in self.names]

    def features(self, cells: Sequence[str]) -> np.ndarray:
        """Return 1 in the place of the name; see `Encoding.features`."""
        return (np.arange(1, len(self.names) + 1) == _places(self.names, cells)[:, None]).astype(np.float32)


@dataclass(frozen=True)
class Codes(OneHot):
    """The number of the name from 1, for a model that learns a vector for each; another name is 0."""

    kind = "embedded"

    @property
    def parts(self) -> list[str]:
        """Return one part, without a name."""
        return [""]

    def features(self, cells: Sequence[str]) -> np.ndarray:
        """Return the numbers; see `Encoding.features`."""
        return _places(self.names, cells)[:, None].astype(np.float32)


@dataclass(frozen=True)
class Dates(Encoding):
    """Year, month, day, weekday (Monday is 0) and hour of a date, and points on a circle for all but the year.

    Args:
        format: How dates are written, as for `datetime.strptime`; empty for ISO 8601, such as `2026-01-31 12:30`.
    """

    format: str = ""
    kind = "dates"
    unit = "date"

    @property
    def parts(self) -> list[str]:
        """Return the names of the parts, those on circles as sine and cosine."""
        circles = [f".{part}.{way}" for part in _CIRCLES for way in ("sin", "cos")]
        return [".year", *(f".{part}" for part in _CIRCLES), *circles]

    def parsed(self, cell: str) -> datetime | None:
        """Return the date of a cell; None where it is none."""
        with suppress(ValueError):
            return datetime.strptime(cell, self.format) if self.format else datetime.fromisoformat(cell)
        return None

    def wrong(self, column: NameColumn) -> np.ndarray:
        """Return which rows hold something else than a date, `(N,)`."""
        found = [code for cell, code in column.found().items() if not is_missing(cell) and self.parsed(cell) is None]
        return np.isin(column.codes, found)

    def features(self, cells: Sequence[str]) -> np.ndarray:
        """Return parts and points; see `Encoding.features`. Cells that are no dates have none."""
        found = np.full((len(cells), len(self.parts)), np.nan, dtype=np.float32)
        for row, cell in enumerate(cells):
            if date := self.parsed(cell):
                values = (date.month, date.day, date.weekday(), date.hour)
                turns = [math.tau * value / size for value, size in zip(values, _CIRCLES.values(), strict=True)]
                found[row] = [date.year, *values, *(point for t in turns for point in (math.sin(t), math.cos(t)))]
        return found


def moments(cells: Sequence[str]) -> np.ndarray:
    """Return the times that cells say, as numbers or as seconds of dates of ISO 8601; NaN where one says none."""
    for kind, unit in (("float64", 1.0), ("datetime64[us]", 1e6)):
        with suppress(ValueError):
            return np.array([cell or "none" for cell in cells], dtype=kind).astype(np.float64) / unit
    return np.concatenate([moments([cell]) for cell in cells]) if len(cells) > 1 else np.full(len(cells), math.nan)


_CIRCLES = {"month": 12, "day": 31, "weekday": 7, "hour": 24}
"""Parts of a date that begin again, with how many values they have."""


@dataclass(frozen=True)
class Words(Encoding):
    """Counts of words and pairs of words, hashed to a fixed number of features, rows of length 1.

    By scikit-learn's `HashingVectorizer`, which has nothing to fit (Weinberger et al. 2009,
    https://arxiv.org/abs/0902.2206); `data.normalize` then weighs rare words more, as it is fitted on training rows.

    Args:
        size: Number of features.
    """

    size: int = 256
    kind = "text"

    @property
    def parts(self) -> list[str]:
        """Return the numbers of the features."""
        return [f"#{number}" for number in range(self.size)]

    def features(self, cells: Sequence[str]) -> np.ndarray:
        """Return the counts; see `Encoding.features`."""
        from sklearn.feature_extraction.text import HashingVectorizer

        hashed = HashingVectorizer(n_features=self.size, ngram_range=(1, 2), dtype=np.float32).transform(cells)
        return np.asarray(hashed.toarray())


_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Tokens(Encoding):
    """The numbers of the words of a text, then 0; words that are not known are 1.

    Args:
        names: The words in order of their numbers; the first two stand for the end and for words that are not known.
        size: Number of features: further words are cut off.
        spaces: Whether words are what stands between spaces, or the items of a list; else capital letters count as
            small ones, and marks are words.
    """

    names: Sequence[str]
    size: int = 256
    spaces: bool = False
    kind = "tokens"

    @property
    def parts(self) -> list[str]:
        """Return the numbers of the places."""
        return [f"#{place}" for place in range(self.size)]

    def cut(self, cell: str) -> list[str]:
        """Return the words of a text."""
        if self.spaces and cell[:1] == "[":
            with suppress(ValueError, SyntaxError):
                return [str(word) for word in literal_eval(cell) if word is not None]
        return cell.split() if self.spaces else _WORD.findall(cell.lower())

    def features(self, cells: Sequence[str]) -> np.ndarray:
        """Return the numbers; see `Encoding.features`."""
        numbers, found = {name: number for number, name in enumerate(self.names)}, np.zeros((len(cells), self.size))
        for row, cell in zip(found, cells, strict=True):
            own = self.cut(cell)[: self.size]
            row[: len(own)] = [numbers.get(word, 1) for word in own]
        return found.astype(np.float32)


ENCODINGS: dict[str, type[Encoding]] = {kind.kind: kind for kind in (OneHot, Codes, Dates, Words, Tokens)}
"""The encodings that are built again from what a run keeps of them."""


def _places(names: Sequence[str], cells: Sequence[str]) -> np.ndarray:
    """Return the place of each cell among names, from 1; 0 for those that are none of them."""
    places = {name: place for place, name in enumerate(names, 1)}
    return np.array([places.get(cell, 0) for cell in cells], dtype=np.int64)


def encode(
    columns: Mapping[str, NumberColumn | NameColumn], names: Sequence[str], encodings: Mapping[str, Encoding]
) -> np.ndarray:
    """Make features `(N, F)` of columns, in the order of the columns; NaN for missing values.

    Args:
        columns: The columns by name.
        names: Which of them, in order.
        encodings: How columns of names are encoded; the others are numbers.
    """
    widths = [len(encodings[name].parts) if name in encodings else 1 for name in names]
    x = np.empty((len(next(iter(columns.values()))), sum(widths)), dtype=np.float32)
    for name, features in zip(names, np.split(x, np.cumsum(widths)[:-1], axis=1), strict=True):
        column = columns[name]
        if name not in encodings:
            features[:, 0] = (column.numbers if isinstance(column, NameColumn) else column).values
            continue
        assert isinstance(column, NameColumn), "it was read as names"
        for rows in np.split(np.arange(len(x)), range(_AT_ONCE, len(x), _AT_ONCE)):
            part = column.take(rows)
            used, by_code = part.found(), np.zeros(len(part.kinds), dtype=np.int64)
            by_code[[*used.values()]] = np.arange(len(used))
            features[rows] = encodings[name].features([*used])[by_code[part.codes]]
        features[column.missing] = np.nan
    return x
