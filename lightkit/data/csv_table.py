"""Tables as arrays, judged as a whole: all that is wrong with them is told in one report.

Without PyTorch, so that a table is judged before it is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from lightkit.common.errors import Problems, UserError
from lightkit.common.names import KNOWN, split_named
from lightkit.common.text import is_missing, is_number
from lightkit.data.csv_columns import NameColumn
from lightkit.data.csv_faults import doubts, encoding_problem, names_problem, target_problem, text_problems, unmarked
from lightkit.data.missing import MissingPolicy
from lightkit.data.table_columns import Table, class_words, read_table
from lightkit.data.table_encodings import Codes, Dates, Encoding, OneHot, Words
from lightkit.data.table_sources import TableSource, open_table
from lightkit.data.table_spec import TableSpec

_TASKS = ("multiclass", "binary", "multilabel", "regression")
_NUMBERS = ("multilabel", "regression")
"""Tasks whose targets are numbers."""
_MOST_CLASSES = 20


@dataclass(frozen=True)
class Tables:
    """Tables of one data set, in which nothing is wrong.

    Args:
        parts: By the argument's part of their name: `train`, `val`, `test`.
        features: Columns to predict from.
        encodings: How columns of names, dates and texts become features.
        policy: What is done about missing values.
        task: Kind of task.
        y: Targets `(N,)` or `(N, K)`: int64 classes, or float32.
        classes: Names of the classes or labels.
        splits: Rows of each split, where the table says which.
        notes: Lines about what was left out.
    """

    parts: dict[str, Table]
    features: list[str]
    encodings: dict[str, Encoding]
    policy: MissingPolicy
    task: str
    y: np.ndarray
    classes: tuple[str, ...]
    splits: dict[str, np.ndarray]
    notes: list[str]


def read_tables(spec: TableSpec) -> Tables:
    """Read and judge the tables of a data set.

    Args:
        spec: What it is made of.

    Raises:
        UserError: Something is wrong; all of it is in one report.
    """
    return _Reading(spec).tables()


def find_task(spec: TableSpec) -> str:
    """Return the kind of task by the targets alone, which are read quickly.

    Raises:
        UserError: They cannot be read.
    """
    if spec.task is not None:
        return spec.task
    source = open_table(spec.path, delimiter=spec.delimiter, encoding=spec.encoding)
    Problems(source.unknown(spec.targets, argument="target")).raise_any()
    table = read_table(source, numbers=spec.targets, names=spec.targets, spelling=spec.spelling, cached=spec.cache)
    there = ~np.any([table.names(name).missing for name in spec.targets], axis=0)
    return guess_task([table.names(name).take(np.flatnonzero(there)) for name in spec.targets])


class _Reading:
    """Reads the tables of a data set, and notes all that is wrong with them.

    Args:
        spec: What the data set is made of.

    Raises:
        UserError: Nothing of it can be read.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec, self.problems = spec, Problems()
        self.files = self._open()
        self._check_settings()
        if "train" not in self.files:
            self.problems.raise_any()
        train = self.files["train"]
        self.chosen = self._feature_names(train)
        self.targets = [name for name in spec.targets if name in train.names]
        self.kinds = {name: kind for kind, names in spec.kinds.items() for name in names if name in self.chosen}
        self.typed = {name: kind for name, kind in train.kinds.items() if name in {*self.chosen} - {*self.kinds}}
        self.kinds |= self.typed
        with self.problems.noted():
            named = [name for name, kind in self.kinds.items() if kind in ("categorical", "embedded")]
            self.policy = MissingPolicy(spec.missing, spec.fill_value, self.chosen, self.targets, named)
        if not hasattr(self, "policy") or not (self.chosen or self.targets):
            self.problems.raise_any()

    def _open(self) -> dict[str, TableSource]:
        """Open the files there are."""
        spec, sources = self.spec, dict[str, TableSource]()
        if (spec.path is None) == (spec.frame is None):
            what, fix = "name one table: a file, or a data frame (data.dataset.frame)", "data.dataset.path=FILE"
            self.problems.append(UserError(what, argument="path", received=spec.path, fix=fix, family="missing-value"))
            return sources
        first = spec.path if spec.frame is None else spec.frame
        for name, given in {"train": first, "val": spec.val_path, "test": spec.test_path}.items():
            if given is not None:
                argument = ("path" if spec.frame is None else "frame") if name == "train" else f"{name}_path"
                with self.problems.noted():
                    how: dict[str, Any] = {"delimiter": spec.delimiter, "encoding": spec.encoding}
                    sources[name] = open_table(given, argument=argument, **how)
        return sources

    def _check_settings(self) -> None:
        """Note what is wrong with the arguments, whatever is in the table."""
        spec, note = self.spec, self.problems.append
        if spec.task not in (None, *_TASKS):
            note(UserError("not a kind of task", argument="task", received=spec.task, choices=_TASKS))
        if spec.too_many:
            note(UserError(f"{spec.task} has one target column", argument="target", received=spec.targets))
        if spec.decimal not in (".", ","):
            note(UserError("not a decimal mark", argument="decimal", received=spec.decimal, choices=(".", ",")))
        if spec.thousands and (len(spec.thousands) > 1 or spec.thousands in ("+-0123456789" + spec.decimal)):
            what, expected = "not a mark between thousands", "one character other than a digit and the decimal mark"
            note(UserError(what, argument="thousands", received=spec.thousands, expected=expected))
        if spec.split_column is not None and (spec.val_path is not None or spec.test_path is not None):
            what, fix = "either files or a column say what the splits are", "leave out val_path and test_path"
            note(UserError(what, argument="split_column", received=spec.split_column, fix=fix))

    def _feature_names(self, file: TableSource) -> list[str]:
        """Return the columns to predict from that are there, and note names of columns that the file lacks."""
        spec, note = self.spec, self.problems.append
        if not spec.targets:
            note(UserError("no column to predict", argument="target", choices=file.names))
        named = {"target": spec.targets, **{argument: [name] for argument, name in spec.marks.items()}}
        others = [name for name in file.names if name not in (*spec.targets, *spec.marks.values())]
        chosen = others if spec.features is None else list(spec.features)
        for argument, names in {**named, "features": chosen, **spec.kinds}.items():
            self.problems += file.unknown(names, argument=argument)
        twice = [name for name in chosen if name in spec.targets]
        if twice:
            note(UserError("the target is among the features", argument="features", received=twice[0]))
        if not chosen:
            note(UserError("no column to predict from", argument="features", choices=others))
        seen = dict[str, str]()
        for kind, name in ((kind, name) for kind, names in spec.kinds.items() for name in names if chosen):
            if name not in chosen and name in file.names:
                note(UserError("not among the features", argument=kind, received=name, choices=chosen))
            elif seen.setdefault(name, kind) != kind:
                what = f"the column is among data.dataset.{seen[name]}, too"
                note(UserError(what, argument=kind, received=name, fix="leave it out of one", family="contradiction"))
        return [name for name in dict.fromkeys(chosen) if name in file.names and name not in spec.targets]

    def tables(self) -> Tables:
        """Read the columns of all files, and judge the values of targets, categorical columns, splits and groups.

        Raises:
            UserError: Something is wrong, here or before.
        """
        spec, encodings = self.spec, dict[str, Encoding]()
        tables, notes = self._read()
        if "train" not in tables:
            self.problems.raise_any()
        train = tables["train"]
        for name, kind in self.kinds.items():
            with self.problems.noted():
                encodings[name] = self._encoding(train, name, kind)
                for table in tables.values():
                    self.problems += encoding_problem(table, name, encodings[name])
        task, y, classes = "", np.zeros(0), tuple[str, ...]()
        if self.targets and self.targets == spec.targets and spec.task in (None, *_TASKS) and not spec.too_many:
            with self.problems.noted():
                task, y, classes = self._targets(tables)
        splits = dict[str, np.ndarray]()
        with self.problems.noted():
            splits = read_splits(tables, spec.split_column)
        self.problems += chain(*(unmarked(table, spec.marks) for table in tables.values()))
        self.problems.raise_any()
        notes += [
            f"column {name!r}: data.dataset.{kind}, by its type in the table" for name, kind in self.typed.items()
        ]
        notes += doubts(train, [name for name in self.chosen if name not in encodings])
        for name in spec.text:
            notes.append(f"column {name!r}: its words are {spec.text_features} inputs (data.dataset.text_features)")
        return Tables(tables, self.chosen, encodings, self.policy, task, y, classes, splits, notes)

    def _encoding(self, train: Table, name: str, kind: str) -> Encoding:
        """Return how a column becomes features, and note what speaks against it."""
        spec = self.spec
        if spec.like is not None:
            return spec.like.reader.encodings[name]
        if kind == "dates":
            return Dates("" if name in self.typed else spec.date_format or "")
        if kind == "text":
            return Words(spec.text_features)
        most = spec.max_categories if kind == "categorical" else max(spec.max_categories, len(train) // 2)
        self.problems += names_problem(train, name, most=most)
        names = _kinds(train, name, self.policy)
        return OneHot(names) if kind == "categorical" else Codes(names)

    def _read(self) -> tuple[dict[str, Table], list[str]]:
        """Read all files without the rows that are left out, with a line about these."""
        marks = [name for name in self.spec.marks.values() if name in self.files["train"].names]
        wanted = [*dict.fromkeys([*self.chosen, *self.targets, *marks])]
        tables, notes = dict[str, Table](), list[str]()
        for part, file in self.files.items():
            lacking = [*file.unknown(wanted, argument=file.argument)]
            self.problems += lacking
            if wanted and not lacking:
                with self.problems.noted():
                    tables[part], left_out = self._read_file(file, marks)
                    notes += left_out
        return tables, notes

    def _read_file(self, file: TableSource, marks: Sequence[str]) -> tuple[Table, list[str]]:
        """Read a file, and note what is missing in it, and text in columns of numbers."""
        spec, wrong = self.spec, list[UserError]()
        names = [*self.kinds, *marks, *(self.targets if spec.task not in _NUMBERS else ())]
        numbers = [name for name in (*self.chosen, *self.targets) if name not in self.kinds]
        how: dict[str, Any] = {"spelling": spec.spelling, "cached": spec.cache}
        table = read_table(file, numbers=numbers, names=names, wrong=wrong, **how)
        self.problems += wrong
        kept, left_out = self.policy.applied(table)
        self.problems += self.policy.problems(kept)
        wanted = [name for name in numbers if name not in self.targets or spec.task in _NUMBERS]
        self.problems += text_problems(kept, wanted, self.chosen, spec)
        return kept, left_out

    def _targets(self, tables: dict[str, Table]) -> tuple[str, np.ndarray, tuple[str, ...]]:
        """Return the kind of task, the targets of all tables, and the names of the classes."""
        task, train = self.spec.task, tables["train"]
        if task is None and len(self.targets) == 1:
            for odd in target_problem(train, self.targets[0], most=self.spec.max_categories):
                raise odd
        task = task or guess_task([train.names(name) for name in self.targets])
        known = () if self.spec.like is None else self.spec.like.reader.words or self.spec.like.info.class_names
        return task, *read_targets([*tables.values()], self.targets, task=task, known=known)


def _kinds(table: Table, name: str, policy: MissingPolicy) -> list[str]:
    """List the values of a categorical column, in order."""
    found = {cell for cell in table.names(name).found() if not is_missing(cell)}
    if not found:
        raise UserError(f"{table.path}: column {name!r} has no value", argument="categorical", received=name)
    return sorted(found | {str(policy.constant(name))} if policy.ways[name] == "constant" else found)


def guess_task(columns: Sequence[NameColumn]) -> str:
    """Guess the kind of task from the values of the targets."""
    if any(column.numbers.text.any() for column in columns):
        return "multiclass" if len(columns) == 1 else "regression"
    if len(columns) > 1:
        return "multilabel" if all(map(_is_label, columns)) else "regression"
    few = len(columns[0].used) <= _MOST_CLASSES
    return "multiclass" if few and all(float(cell).is_integer() for cell in columns[0].found()) else "regression"


def _is_label(column: NameColumn) -> bool:
    rounded = np.isin(column.as_kinds.values[column.used], (0, 1))
    return bool(rounded.all()) and {float(cell) for cell in column.found()} <= {0, 1}


def read_targets(
    tables: list[Table], targets: list[str], *, task: str, known: Sequence[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the targets of all tables and the names of the classes or labels; `known` are those of training rows."""
    if task in ("multiclass", "binary"):
        return _classes(tables, targets[0], [*known] or class_words(tables[0], targets[0]), binary=task == "binary")
    y = np.stack([np.concatenate([t.numbers(name).values for t in tables]) for name in targets], 1)
    if task == "multilabel":
        return y, tuple(targets)
    return y[:, 0] if len(targets) == 1 else y, ()


def _classes(tables: list[Table], target: str, names: list[str], *, binary: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    if len(names) == 1:
        what, choices = f"column {target!r} holds one class only", [*tables[0].source.names]
        choices.remove(target)
        fix = "data.dataset.task=regression where it is a number to predict" if is_number(names[0]) else None
        facts: dict[str, Any] = {"received": names[0], "choices": choices, "fix": fix}
        raise UserError(what, argument="target", expected="2 classes or more", **facts)
    if binary and len(names) != 2:
        raise UserError("binary needs a target of two values", argument="task", received=names[:5])
    y = np.concatenate([_numbered(table, target, names, "a class that the training rows lack") for table in tables])
    return (y.astype(np.float32), (names[1],)) if binary else (y, tuple(names))


def _numbered(table: Table, name: str, known: Sequence[str], problem: str, argument: str = "target") -> np.ndarray:
    """Return the cells of a column as `(N,)` places in a list of known values."""
    numbers = table.names(name).numbered({cell: i for i, cell in enumerate(known)})
    unknown = np.flatnonzero(numbers < 0)
    if len(unknown):
        facts = {"argument": argument, "choices": known, "family": "data-unreadable"}
        raise table.fault(int(unknown[0]), name, problem, **facts)
    return numbers


def read_splits(tables: dict[str, Table], split_column: str | None) -> dict[str, np.ndarray]:
    """Return the rows of each split that files or a column name, and refuse a cell that names none."""
    if split_column is None:
        ends = np.cumsum([*map(len, tables.values())])
        pieces = np.split(np.arange(ends[-1]), ends[:-1])
        return dict(zip(tables, pieces, strict=True)) if len(tables) > 1 else {}
    if len(tables) > 1 or split_column not in tables["train"].columns:
        return {}  # which is told elsewhere
    named = filter(split_named, tables["train"].names(split_column).found())  # in capitals too
    known = [*dict.fromkeys([*KNOWN, *named])]
    parts = _numbered(tables["train"], split_column, known, "not a split", argument="split_column")
    return {name: found for i, name in enumerate(known) if len(found := np.flatnonzero(parts == i))}
