"""What is wrong with a column of a table that should hold numbers or a few names, in a sentence of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightkit.common.errors import UserError
from lightkit.common.text import is_number
from lightkit.data.csv_columns import NameColumn, is_missing
from lightkit.data.table_columns import Table, read_table
from lightkit.data.table_encodings import Encoding

_SHARE = 0.9
"""Share of the cells with text that a pattern has to fit."""
_MANY = 20
"""Rows, or different cells, from which on it can be told that nearly every row has a cell of its own."""
_WORDS = 4
"""Words of a cell, on average, from which on it is free text."""
_MONTH = r"(?i:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\w*\.?"
_DATE = "|".join(
    (
        r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?",
        r"\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})( .*)?",
        r"\d{1,2}:\d{2}(:\d{2}.*)?( ?[AaPp][Mm])?",
        rf"(\w+,? )?{_MONTH}[ -](\d{{1,2}}\w*,?[ -])?\d{{4}}( .*)?",
        rf"(\w+,? )?\d{{1,2}}\w*\.?[ -]{_MONTH}[ -](\d{{4}}|\d{{2}})( .*)?",
    )
)
_AMOUNT = r"[+-]?\d[\d.,]*"
_GROUPED = r"[+-]?\d{1,3}"
_PATTERNS = {
    "decimal": r"[+-]?\d*,\d+([eE][+-]?\d+)?",
    "german": _GROUPED + r"(\.\d{3})*(,\d+)?",
    "thousands": _GROUPED + r"(,\d{3})+(\.\d*)?",
    "date": _DATE,
    "nested": r"[\[{(].*[\])}]",
    "unit": rf"[€$£¥<>~≈]\s*{_AMOUNT}|{_AMOUNT}(\s*[%€$£¥°]\w?|\s+[a-zA-Zµ][\w/²³]{{0,6}}|[a-zA-Zµ]{{1,3}})",
}
_COMMA, _BOTH = "\"data.dataset.decimal=','\"", "\"data.dataset.decimal=','\" \"data.dataset.thousands='.'\""
_HELD = {
    "text": ("text", ""),
    "decimal": ("numbers with a decimal comma", _COMMA),
    "german": ("numbers with a decimal comma and points between thousands", _BOTH),
    "thousands": ("numbers with commas between thousands", "\"data.dataset.thousands=','\""),
    "unit": (
        "numbers with a unit or a sign",
        "write numbers alone into the cells, and the unit into the name of the column",
    ),
    "mixed": (
        "text in some rows and numbers in most",
        "mend these cells; one that means that there is no value is left empty (data.dataset.missing then applies)",
    ),
    "numbers": ("numbers", ""),
    "nested": ("lists or mappings", "a table has one value in each cell"),
    "date": ("dates or times", "or data.dataset.dates=[NAMES]: year, month, day, weekday and hour are inputs then"),
    "ids": (
        "another text in nearly every row, as an id does",
        "an id tells nothing of a row that is new (data.dataset.id_column keeps one for predictions); "
        "of texts the words are inputs with data.dataset.text=[NAMES]",
    ),
    "words": ("free text", "or data.dataset.text=[NAMES]: its words are inputs then"),
    "names": ("too many different names", "or join rare ones, or data.dataset.embedded=[NAMES] with model=tabular"),
}
"""What columns hold, and what to do about it."""
_LEFT_OUT = ("nested", "date", "ids", "words", "names")
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
    present = {cell: int(counts[code]) for cell, code in column.found().items() if not is_missing(cell)}
    text = {cell: count for cell, count in present.items() if not is_number(cell)}
    if not text:
        return None
    codes = [code for cell, code in column.found().items() if cell in text]
    row = int(np.flatnonzero(np.isin(column.codes, codes))[0])
    return Judged(name, _kind(text, rows=sum(present.values()), most=most), row, len(present))


def _kind(text: Mapping[str, int], *, rows: int, most: int) -> str:
    """Say what a column holds, by the number of rows of each of its texts and of all rows with a value."""
    total = sum(text.values())
    for kind, pattern in _PATTERNS.items():
        fitting = re.compile(pattern)
        if sum(count for cell, count in text.items() if fitting.fullmatch(cell)) >= _SHARE * total:
            return kind
    if total < rows / 2:
        return "mixed"
    if len(text) >= max(_MANY, _SHARE * total / 2) and _words(text) >= _WORDS:
        return "words"
    if len(text) >= max(_MANY, _SHARE * total):
        return "ids"
    return "names" if len(text) > most else "text"


def _words(text: Mapping[str, int]) -> float:
    return sum(len(cell.split()) for cell in text) / len(text)


def text_problems(
    table: Table,
    wanted: Sequence[str],
    *,
    features: Sequence[str],
    categorical: Sequence[str],
    most: int,
    unsure: bool = False,
) -> Iterator[UserError]:
    """Yield the errors of columns of numbers that hold text, one for each kind of text.

    Args:
        table: The table.
        wanted: Columns that should hold numbers.
        features: All columns to predict from.
        categorical: Those that hold names.
        most: See `judge`.
        unsure: Whether one of the features may be the target that is meant, so that names are no fault.
    """
    wrong = [name for name in wanted if table.numbers(name).text.any()]
    if not wrong:
        return
    again = read_table(table.source, numbers=[], names=wrong, wrong=[])
    rows = np.searchsorted(again.rows, table.rows)
    found = [judge(name, again.names(name).take(rows), most=most) for name in wrong]
    by_kind: dict[tuple[str, bool], list[Judged]] = {}
    for one in found:
        if one is not None and not (unsure and one.kind == "text"):
            by_kind.setdefault((one.kind, one.name in features), []).append(one)
    left = [one.name for one in found if one is not None and one.kind in _LEFT_OUT]
    kept = [name for name in features if name not in left]
    for (kind, is_feature), own in by_kind.items():
        place, cell = table.cell(own[0].row, own[0].name)
        yield UserError(
            f"{place}: {_named(own)} {_what(kind, own)}",
            argument="features" if is_feature else "target",
            expected="a number",
            received=cell,
            fix=_fix(kind, own, kept, categorical) if is_feature else _target_fix(kind),
            family="data-unreadable",
        )


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
    place, cell = table.cell(found.row, column)
    held, fix = ("names", "") if found.kind == "text" else _HELD[found.kind]
    fix = fix.replace("NAMES", column)
    places = "features and categorical" if found.kind in ("text", *_LEFT_OUT) else "categorical"
    fixes = (f"leave it out of data.dataset.{places}", fix)
    yield UserError(
        f"{place}: column {column!r} would be {count:,} inputs: it holds {held}",
        argument="categorical",
        expected=f"{most} different names at most (data.dataset.max_categories)",
        received=cell,
        fix=f"{'; '.join(filter(None, fixes))}; or data.dataset.max_categories={count} where that is meant",
    )


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
    place, cell = table.cell(found.row, target)
    yield UserError(
        f"{place}: {_named([found])} {_what(found.kind, [found])}: these are no classes",
        argument="target",
        expected="numbers, or the names of classes",
        received=cell,
        fix=f"{_target_fix(found.kind)}; data.dataset.task=multiclass takes each of the {found.kinds:,} for a class",
        family="data-unreadable",
    )


def encoding_problem(table: Table, name: str, encoding: Encoding) -> Iterator[UserError]:
    """Yield the error of a column with cells that cannot be encoded, such as dates that are none."""
    wrong = np.flatnonzero(encoding.wrong(table.names(name)))
    if len(wrong):
        place, cell = table.cell(int(wrong[0]), name)
        more = f"; {len(wrong):,} rows hold none" if len(wrong) > 1 else ""
        yield UserError(
            f"{place}: column {name!r} holds no {encoding.unit}{more}",
            argument=encoding.kind,
            expected="2026-01-31, 2026-01-31 12:30 (ISO 8601), or as data.dataset.date_format says",
            received=cell,
            fix="data.dataset.date_format='%d.%m.%Y', or as they are written; cells without a date are left empty",
            family="data-unreadable",
        )


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
    held = _HELD[kind][0]
    if kind == "names":
        held += f" ({', '.join(f'{one.kinds:,}' for one in own[:10])}), each of which would be an input"
    return f"hold{'s' if len(own) == 1 else ''} {held}"


def _fix(kind: str, own: Sequence[Judged], kept: Sequence[str], categorical: Sequence[str]) -> str:
    names = ",".join(one.name for one in own)
    if kind == "text":
        named = ",".join([*categorical, names])
        return f"data.dataset.categorical=[{named}] for names, or leave it out of data.dataset.features"
    if kind not in _LEFT_OUT:
        return _HELD[kind][1]
    few = f": data.dataset.features=[{','.join(kept)}]" if 0 < len(kept) <= 20 else " of data.dataset.features"
    return f"leave it out{few}; {_HELD[kind][1].replace('NAMES', names)}"


def _target_fix(kind: str) -> str:
    other = "choose another column, or make numbers of it first"
    return other if kind in ("text", *_LEFT_OUT) else _HELD[kind][1]
