"""What is wrong with a column of a table that should hold numbers or a few names, in a sentence of its own."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightkit.common.errors import UserError
from lightkit.common.reading import data_beside
from lightkit.data.csv_columns import NameColumn
from lightkit.data.table_columns import Table, read_table
from lightkit.data.table_encodings import Encoding, moments
from lightkit.data.table_spec import TableSpec

_SHARE = 0.9
"""Share of the cells with text that a pattern has to fit."""
_MANY = 20
"""Rows, or different cells, from which on it can be told that nearly every row has a cell of its own."""
_WORDS = 4
"""Words of a cell, on average, from which on it is free text."""
_MARKS: dict[str, dict[str, str]] = data_beside(__file__)["marks"]
"""What is told of a row that lacks what a column has to tell of it, by the argument that names the column."""
_DOUBTS: dict[str, str] = data_beside(__file__)["doubts"]
"""What is told of a column of numbers by the kind of a doubtful cell."""
_KINDS: dict[str, dict[str, str]] = data_beside(__file__)["kinds"]
"""What columns hold, how that is told, and what to do about it."""
_FEATURES = "features"


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
    names = {kind: [one.name for one in own] for (kind, is_feature), own in by_kind.items() if is_feature}
    settings = _settings(names, features, spec)
    line = " ".join(dict.fromkeys(settings.values())) if len(settings) == len(names) > 1 else ""
    for (kind, is_feature), own in by_kind.items():
        fix = _mended(kind, settings.get(kind, "") if is_feature else "")
        fix += f"; all of these columns in one line: {line}" if line and [*names][-1:] == [kind] and is_feature else ""
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
    kind = "names" if found.kind == "text" else found.kind
    places = "features and categorical" if "key" in _KINDS[kind] else "categorical"
    mended = _mended(kind, _setting(kind, [column])) if _KINDS[kind].get("key") != _FEATURES else ""
    what = f"column {column!r} would be {count:,} inputs: it holds {_KINDS[kind]['holds']}"
    expected = f"{most} different names at most (data.dataset.max_categories)"
    fixes = filter(None, (f"leave it out of data.dataset.{places}", mended))
    fix = f"{'; '.join(fixes)}; or data.dataset.max_categories={count} where that is meant"
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
    # A few whole numbers may be classes beside names, such as 1, 2 and other; many fractions are amounts.
    classes = ("text", "names", *(() if (names.numbers.values % 1 > 0).any() else ("mixed",)))
    if found is None or found.kind in classes or found.kinds <= min(_MANY, len(table) // 2):
        return
    what = f"{_named([found])} {_what(found.kind, [found])}: these are no classes"
    fix = f"{_mended(found.kind, '')}; data.dataset.task=multiclass takes each of the {found.kinds:,} for a class"
    facts = {"expected": "numbers, or the names of classes", "fix": fix, "family": "data-unreadable"}
    yield table.fault(found.row, target, what, argument="target", **facts)


def encoding_problem(table: Table, name: str, encoding: Encoding) -> Iterator[UserError]:
    """Yield the error of a column with cells that cannot be encoded, such as dates that are none."""
    wrong = np.flatnonzero(encoding.wrong(table.names(name)))
    if len(wrong):
        what = f"column {name!r} holds no {encoding.unit}" + f"; {len(wrong):,} rows hold none" * (len(wrong) > 1)
        expected = "2026-01-31, 2026-01-31 12:30 (ISO 8601), or as data.dataset.date_format says"
        fix = "data.dataset.date_format='%d.%m.%Y', '%H:%M' or as they are written; a cell without a date is left empty"
        yield table.fault(int(wrong[0]), name, what, argument=encoding.kind, expected=expected, fix=fix)


def unmarked(table: Table, marks: Mapping[str, str]) -> Iterator[UserError]:
    """Yield the errors of rows without a group, a time or a weight, by the columns that tell them."""
    for argument, lacks in _LACKS.items():
        column = marks.get(argument, "")
        if column in table.columns and (wrong := lacks(table.names(column))).any():
            about = {key: text.replace("NAME", column) for key, text in _MARKS[argument].items()}
            yield table.fault(int(wrong.argmax()), column, **about, argument=argument, family="data-unreadable")


_LACKS: dict[str, Callable[[NameColumn], np.ndarray]] = {
    "group_column": lambda own: own.missing,
    "time_column": lambda own: own.missing | np.isnan(moments(own.kinds.to_pylist()))[own.codes],
    "weight_column": lambda own: ~(own.numbers.values >= 0),
}
"""Which rows lack what a column has to tell of each, by the argument that names it."""


def doubts(table: Table, features: Sequence[str]) -> Iterator[str]:
    """Yield lines about features of numbers that only count the rows, are written as ids are, or are too much alike."""
    for name in features:
        numbers = table.numbers(name)
        values = numbers.values if len(table) > _MANY else np.zeros(0)
        if len(values) and np.isfinite(values).all() and (np.diff(values) == 1).all():
            told = "counts the rows: as a feature it tells their order; data.dataset.features may leave it out"
            yield f"column {name!r} {told}"
        elif numbers.doubtful:
            told = _DOUBTS["padded" if numbers.doubtful.startswith("0") else "alike"]
            yield f"column {name!r} " + told.replace("CELL", numbers.doubtful).replace("NAME", name)


def _named(own: Sequence[Judged]) -> str:
    shown = ", ".join(repr(one.name) for one in own[:10])
    more = f" and {len(own) - 10} others" if len(own) > 10 else ""
    return f"column {shown}" if len(own) == 1 else f"columns {shown}{more}"


def _what(kind: str, own: Sequence[Judged]) -> str:
    held = _KINDS[kind]["holds"]
    if kind == "names":
        held += f" ({', '.join(f'{one.kinds:,}' for one in own[:10])}), each of which would be an input"
    return f"hold{'s' if len(own) == 1 else ''} {held}"


def _settings(by_kind: Mapping[str, Sequence[str]], features: Sequence[str], spec: TableSpec) -> dict[str, str]:
    """Write for each kind of features what is to be typed so that they are read, or left out."""
    keys = {kind: str(_KINDS[kind]["key"]) for kind in by_kind if "key" in _KINDS[kind]}
    left = {name for kind, key in keys.items() if key == _FEATURES for name in by_kind[kind]}
    kept = [name for name in features if name not in left]
    known = {**spec.kinds, _FEATURES: kept if len(kept) <= _MANY else ["…"]}
    named = {kind: [*known[key], *by_kind[kind]] if key in spec.kinds else known[key] for kind, key in keys.items()}
    return {kind: _setting(kind, names) for kind, names in named.items()}


def _setting(kind: str, names: Sequence[str]) -> str:
    """Write names of columns as a setting that a shell and Hydra read as they are."""
    about = _KINDS[kind]
    quoted = (n if n.isidentifier() and n.isascii() else json.dumps(n, ensure_ascii=False) for n in names)
    return shlex.quote(f"data.dataset.{about.get('key')}=[{','.join(quoted)}]") + about.get("more", "")


def _mended(kind: str, setting: str) -> str:
    """Return what to do about a kind of columns, by what is to be typed; empty for a target, which no setting mends."""
    if "key" in _KINDS[kind] and not setting:
        return "choose another column, or make numbers of it first"
    return _KINDS[kind].get("fix", "").replace("SETTING", setting)
