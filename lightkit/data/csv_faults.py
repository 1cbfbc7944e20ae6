"""What is wrong with a column of a table that should hold numbers or a few names, in a sentence of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightkit.common.errors import UserError
from lightkit.common.reading import data_beside
from lightkit.data.csv_columns import NameColumn
from lightkit.data.table_columns import Table, read_table
from lightkit.data.table_encodings import Encoding
from lightkit.data.table_spec import TableSpec

_SHARE = 0.9
"""Share of the cells with text that a pattern has to fit."""
_MANY = 20
"""Rows, or different cells, from which on it can be told that nearly every row has a cell of its own."""
_WORDS = 4
"""Words of a cell, on average, from which on it is free text."""
_KINDS: dict[str, dict[str, str]] = data_beside(__file__)["kinds"]
"""What columns hold, how that is told, and what to do about it."""
_LEFT_OUT = tuple(kind for kind, about in _KINDS.items() if "left_out" in about)
"""What is better left out; the rest can be numbers, or names."""


@dataclass(frozen=True)
class Judged:
    """A column that is not what it should be.

    Args:
        name: Its name.
        kind: What it holds: `text` for a few names.
        row: First row with such a cell.
        kinds: Different names it holds.
    """

    name: str
    kind: str
    row: int
    kinds: int


def judge(name: str, column: NameColumn, *, most: int) -> Judged | None:
    """Judge a column by its text; None where it has none.

    Args:
        name: Its name.
        column: Its cells as names.
        most: Different names up to which it is one of names.
    """
    counts = np.bincount(column.codes, minlength=len(column.kinds))
    present, text = (counts > 0) & ~column.as_kinds.missing, column.as_kinds.text & (counts > 0)
    if not text.any():
        return None
    row, rows = int(text[column.codes].argmax()), int(counts[present].sum())
    own = {str(column.kinds[int(code)]): int(counts[code]) for code in np.flatnonzero(text)}
    return Judged(name, _kind(own, rows=rows, most=most), row, int(present.sum()))


def _kind(text: Mapping[str, int], *, rows: int, most: int) -> str:
    """Say what a column holds, by the number of rows of each of its texts and of all rows with a value."""
    total = sum(text.values())
    for kind, about in _KINDS.items():
        fitting = re.compile(about.get("pattern", "(?!)"))
        if sum(count for cell, count in text.items() if fitting.fullmatch(cell)) >= _SHARE * total:
            return kind
    if total < rows / 2:
        return "mixed"
    words = sum(len(cell.split()) for cell in text) / len(text)
    if len(text) >= max(_MANY, _SHARE * total / 2) and words >= _WORDS:
        return "words"
    if len(text) >= max(_MANY, _SHARE * total):
        return "ids"
    return "names" if len(text) > most else "text"


def text_problems(table: Table, wanted: Sequence[str], features: Sequence[str], spec: TableSpec) -> Iterator[UserError]:
    """Yield the errors of columns of numbers that hold text, one for each kind of text.

    Args:
        table: The table.
        wanted: Columns that should hold numbers.
        features: All columns to predict from.
        spec: What the data set is made of.
    """
    # One of the features may be the target that is meant, so that names are no fault.
    unsure = spec.features is None and not {*spec.targets} <= {*table.source.names}
    wrong = [name for name in wanted if table.numbers(name).text.any()]
    if not wrong:
        return
    again = read_table(table.source, numbers=[], names=wrong, wrong=[])
    rows = np.searchsorted(again.rows, table.rows)
    found = [judge(name, again.names(name).take(rows), most=spec.max_categories) for name in wrong]
    by_kind: dict[tuple[str, bool], list[Judged]] = {}
    for one in found:
        if one is not None and not (unsure and one.kind == "text"):
            by_kind.setdefault((one.kind, one.name in features), []).append(one)
    left = [one.name for one in found if one is not None and one.kind in _LEFT_OUT]
    kept = [name for name in features if name not in left]
    for (kind, is_feature), own in by_kind.items():
        fix = _fix(kind, own, kept, spec.categorical) if is_feature else _target_fix(kind)
        facts = {"argument": "features" if is_feature else "target", "expected": "a number", "fix": fix}
        what = f"{_named(own)} {_what(kind, own)}"
        yield table.fault(own[0].row, own[0].name, what, **facts, family="data-unreadable")


def names_problem(table: Table, column: str, *, most: int) -> Iterator[UserError]:
    """Yield the error of a column of names that holds too many, or numbers, dates or ids.

    Args:
        table: The table.
        column: The column, which was read as names.
        most: Names that are not too many.
    """
    names = table.names(column)
    count = len(names.used)
    if count <= most:
        return
    found = judge(column, names, most=most) or Judged(column, "numbers", 0, count)
    held = "names" if found.kind == "text" else _KINDS[found.kind]["holds"]
    places = "features and categorical" if found.kind in ("text", *_LEFT_OUT) else "categorical"
    fixes = (f"leave it out of data.dataset.{places}", _mended(found.kind, column))
    what = f"column {column!r} would be {count:,} inputs: it holds {held}"
    expected = f"{most} different names at most (data.dataset.max_categories)"
    fix = f"{'; '.join(filter(None, fixes))}; or data.dataset.max_categories={count} where that is meant"
    yield table.fault(found.row, column, what, argument="categorical", expected=expected, fix=fix)


def target_problem(table: Table, target: str, *, most: int) -> Iterator[UserError]:
    """Yield the error of a target whose text cannot be the names of classes.

    Args:
        table: The table.
        target: The column, which was read as names.
        most: Classes that are not too many.
    """
    names = table.names(target)
    found = judge(target, names, most=most)
    if found is None or found.kind in ("text", "names", "mixed") or found.kinds <= _MANY:
        return
    what = f"{_named([found])} {_what(found.kind, [found])}: these are no classes"
    fix = f"{_target_fix(found.kind)}; data.dataset.task=multiclass takes each of the {found.kinds:,} for a class"
    facts = {"expected": "numbers, or the names of classes", "fix": fix, "family": "data-unreadable"}
    yield table.fault(found.row, target, what, argument="target", **facts)


def encoding_problem(table: Table, name: str, encoding: Encoding) -> Iterator[UserError]:
    """Yield the error of a column with cells that cannot be encoded, such as dates that are none."""
    wrong = np.flatnonzero(encoding.wrong(table.names(name)))
    if len(wrong):
        what = f"column {name!r} holds no {encoding.unit}" + f"; {len(wrong):,} rows hold none" * (len(wrong) > 1)
        expected = "2026-01-31, 2026-01-31 12:30 (ISO 8601), or as data.dataset.date_format says"
        fix = "data.dataset.date_format='%d.%m.%Y', or as they are written; a cell without a date is left empty"
        yield table.fault(int(wrong[0]), name, what, argument=encoding.kind, expected=expected, fix=fix)


def doubts(table: Table, features: Sequence[str]) -> list[str]:
    """Return lines about features of numbers that only count the rows, or are written as ids are."""
    counters, padded = list[str](), list[str]()
    for name in features:
        numbers = table.numbers(name)
        values = numbers.values if len(table) > _MANY else np.zeros(0)
        if len(values) and np.isfinite(values).all() and (np.diff(values) == 1).all():
            told = "counts the rows: as a feature it tells their order; data.dataset.features may leave it out"
            counters.append(f"column {name!r} {told}")
        elif numbers.padded:
            told = "has zeros before its numbers, as ids and codes have, and is read as numbers"
            fix = f"data.dataset.categorical=[{name}] takes them for names, data.dataset.features may leave it out"
            padded.append(f"column {name!r} {told} ({numbers.padded!r}): {fix}")
    return [*counters, *padded]


def _named(own: Sequence[Judged]) -> str:
    shown = ", ".join(repr(one.name) for one in own[:10])
    more = f" and {len(own) - 10} others" if len(own) > 10 else ""
    return f"column {shown}" if len(own) == 1 else f"columns {shown}{more}"


def _what(kind: str, own: Sequence[Judged]) -> str:
    held = _KINDS[kind]["holds"]
    if kind == "names":
        held += f" ({', '.join(f'{one.kinds:,}' for one in own[:10])}), each of which would be an input"
    return f"hold{'s' if len(own) == 1 else ''} {held}"


def _fix(kind: str, own: Sequence[Judged], kept: Sequence[str], categorical: Sequence[str]) -> str:
    names = ",".join(one.name for one in own)
    if kind == "text":
        named = ",".join([*categorical, names])
        return f"data.dataset.categorical=[{named}] for names, or leave it out of data.dataset.features"
    if kind not in _LEFT_OUT:
        return _mended(kind, names)
    few = f": data.dataset.features=[{','.join(kept)}]" if 0 < len(kept) <= 20 else " of data.dataset.features"
    return f"leave it out{few}; {_mended(kind, names)}"


def _target_fix(kind: str) -> str:
    other = "choose another column, or make numbers of it first"
    return other if kind in ("text", *_LEFT_OUT) else _mended(kind, "")


def _mended(kind: str, names: str) -> str:
    return _KINDS[kind].get("fix", "").replace("NAMES", names)
