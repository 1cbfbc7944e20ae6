"""Tables from CSV files as arrays, judged as a whole: all that is wrong with them is told in one report.

Without PyTorch, so that a table is judged before it is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lightkit.common.csv_lines import CsvFile, open_csv
from lightkit.common.errors import Problems, UserError
from lightkit.common.names import KNOWN, split_named
from lightkit.data.csv_columns import NameColumn, Spelling, is_missing, is_number
from lightkit.data.csv_faults import names_problem, target_problem, text_problems
from lightkit.data.csv_reader import Table, read_table
from lightkit.data.missing import MissingPolicy

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
        kinds: Values of each categorical column, in order.
        policy: What is done about missing values.
        task: Kind of task.
        y: Targets `(N,)` or `(N, K)`: int64 classes, or float32.
        classes: Names of the classes or labels.
        splits: Rows of each split, where the table says which.
        groups: Name of the group of each row; None where there are none.
        notes: Lines about what was left out.
    """

    parts: dict[str, Table]
    features: list[str]
    kinds: dict[str, list[str]]
    policy: MissingPolicy
    task: str
    y: np.ndarray
    classes: tuple[str, ...]
    splits: dict[str, np.ndarray]
    groups: list[str] | None
    notes: list[str]


@dataclass(frozen=True)
class TableSpec:
    """What a data set is made of; the arguments are those of `lightkit.data.csv_file.csv`."""

    path: str
    target: str | Sequence[str]
    features: Sequence[str] | None = None
    task: str | None = None
    categorical: Sequence[str] = ()
    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    missing: str | Mapping[str, str] = "error"
    fill_value: float | str | Mapping[str, Any] | None = None
    add_indicator: bool = False
    val_path: str | None = None
    test_path: str | None = None
    split_column: str | None = None
    group_column: str | None = None
    target_scale: float = 1.0
    max_categories: int = 100

    @property
    def targets(self) -> list[str]:
        """Return the columns to predict."""
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def marks(self) -> dict[str, str]:
        """Return the columns that say what belongs together, by their argument."""
        found = {"split_column": self.split_column, "group_column": self.group_column}
        return {argument: name for argument, name in found.items() if name is not None}

    @property
    def spelling(self) -> Spelling:
        """Return how numbers are written."""
        return Spelling(self.decimal, self.thousands)


def read_tables(asked: TableSpec) -> Tables:
    """Read and judge the tables of a data set.

    Args:
        asked: What it is made of.

    Raises:
        UserError: Something is wrong; all of it is in one report.
    """
    problems = Problems()
    files = _open(asked, problems)
    _check_settings(asked, problems)
    if "train" not in files:
        problems.raise_any()
    train = files["train"]
    chosen = _feature_names(train, asked, problems)
    known = [name for name in asked.targets if name in train.names]
    policy = None
    with problems.noted():
        policy = MissingPolicy(asked.missing, asked.fill_value, chosen, known, asked.categorical)
    if policy is None or not (chosen or known):
        problems.raise_any()
    assert policy is not None, "its problem has been raised"
    tables, notes = _read(files, asked, chosen, known, policy=policy, problems=problems)
    if "train" not in tables:
        problems.raise_any()
    return _judged(tables, asked, chosen, known, policy=policy, notes=notes, problems=problems)


def _open(asked: TableSpec, problems: Problems) -> dict[str, CsvFile]:
    """Open the files there are."""
    paths = {"train": asked.path, "val": asked.val_path, "test": asked.test_path}
    files = dict[str, CsvFile]()
    for name, path in paths.items():
        if path is not None:
            with problems.noted():
                argument = "path" if name == "train" else f"{name}_path"
                files[name] = open_csv(path, delimiter=asked.delimiter, encoding=asked.encoding, argument=argument)
    return files


def _check_settings(asked: TableSpec, problems: Problems) -> None:
    """Note what is wrong with the arguments, whatever is in the table."""
    if asked.task not in (None, *_TASKS):
        problems.append(UserError("not a kind of task", argument="task", received=asked.task, choices=_TASKS))
    if asked.task in ("multiclass", "binary") and len(asked.targets) > 1:
        problems.append(UserError(f"{asked.task} has one target column", argument="target", received=asked.targets))
    if asked.decimal not in (".", ","):
        problems.append(UserError("not a decimal mark", argument="decimal", received=asked.decimal, choices=(".", ",")))
    if asked.thousands and (len(asked.thousands) > 1 or asked.thousands in ("+-0123456789" + asked.decimal)):
        what, expected = "not a mark between thousands", "one character other than a digit and the decimal mark"
        problems.append(UserError(what, argument="thousands", received=asked.thousands, expected=expected))
    if asked.split_column is not None and (asked.val_path is not None or asked.test_path is not None):
        what, fix = "either files or a column say what the splits are", "leave out val_path and test_path"
        problems.append(UserError(what, argument="split_column", received=asked.split_column, fix=fix))


def _feature_names(file: CsvFile, asked: TableSpec, problems: Problems) -> list[str]:
    """Return the columns to predict from that are there, and note names of columns that the file lacks."""
    targets = asked.targets
    if not targets:
        problems.append(UserError("no column to predict", argument="target", choices=file.names))
    named = {"target": targets, **{argument: [name] for argument, name in asked.marks.items()}}
    others = [name for name in file.names if name not in (*targets, *asked.marks.values())]
    chosen = others if asked.features is None else list(asked.features)
    for argument, names in {**named, "features": chosen, "categorical": asked.categorical}.items():
        problems += file.unknown(names, argument=argument)
    twice = [name for name in chosen if name in targets]
    if twice:
        problems.append(UserError("the target is among the features", argument="features", received=twice[0]))
    if not chosen:
        problems.append(UserError("no column to predict from", argument="features", choices=others))
    for name in asked.categorical:
        if name not in chosen and name in file.names and chosen:
            what = "not among the features"
            problems.append(UserError(what, argument="categorical", received=name, choices=chosen))
    return [name for name in dict.fromkeys(chosen) if name in file.names and name not in targets]


def _read(
    files: Mapping[str, CsvFile],
    asked: TableSpec,
    chosen: list[str],
    targets: list[str],
    *,
    policy: MissingPolicy,
    problems: Problems,
) -> tuple[dict[str, Table], list[str]]:
    """Read the columns of all files, and note what is missing, and text in columns of numbers."""
    marks = [name for name in asked.marks.values() if name in files["train"].names]
    categorical = [name for name in asked.categorical if name in chosen]
    names = [*categorical, *marks, *(targets if asked.task not in _NUMBERS else ())]
    wanted = [*dict.fromkeys([*chosen, *targets, *marks])]
    tables, notes = dict[str, Table](), list[str]()
    for part, file in files.items():
        lacking = [*file.unknown(wanted, argument=file.argument)]
        problems += lacking
        if lacking or not wanted:
            continue
        with problems.noted():
            wrong = list[UserError]()
            numbers = [name for name in (*chosen, *targets) if name not in categorical]
            table = read_table(file, numbers=numbers, names=names, spelling=asked.spelling, wrong=wrong)
            problems += wrong
            kept, left_out = policy.applied(table)
            problems += policy.problems(kept)
            tables[part], notes = kept, notes + left_out
            plain = [name for name in numbers if name not in targets or asked.task in _NUMBERS]
            about: dict[str, Any] = {"features": chosen, "categorical": categorical, "most": asked.max_categories}
            unsure = asked.features is None and targets != asked.targets
            problems += text_problems(kept, plain, unsure=unsure, **about)
    return tables, notes


def _judged(
    tables: dict[str, Table],
    asked: TableSpec,
    chosen: list[str],
    targets: list[str],
    *,
    policy: MissingPolicy,
    notes: list[str],
    problems: Problems,
) -> Tables:
    """Judge the values of targets, categorical columns, splits and groups.

    Raises:
        UserError: Something is wrong, here or before.
    """
    train, kinds, most = tables["train"], dict[str, list[str]](), asked.max_categories
    for name in [name for name in asked.categorical if name in chosen]:
        with problems.noted():
            kinds[name] = _kinds(train, name, policy)
        problem = names_problem(train, name, most=most)
        problems += [problem] if problem else []
    task, y, classes = asked.task, np.zeros(0), tuple[str, ...]()
    if targets and targets == asked.targets and task in (None, *_TASKS) and not _too_many(asked):
        odd = None if task is not None or len(targets) > 1 else target_problem(train, targets[0], most=most)
        problems += [odd] if odd is not None else []
        with problems.noted():
            task = task or guess_task([train.names(name) for name in targets])
            y, classes = read_targets([*tables.values()], targets, task=task) if odd is None else (y, ())
    splits, groups = dict[str, np.ndarray](), None
    with problems.noted():
        splits = read_splits(tables, asked.split_column)
    if asked.group_column in train.file.names:
        with problems.noted():
            groups = read_groups([*tables.values()], str(asked.group_column))
    problems.raise_any()
    assert task is not None, "it has been found out"
    return Tables(
        tables,
        chosen,
        kinds,
        policy,
        task=task,
        y=y,
        classes=classes,
        splits=splits,
        groups=groups,
        notes=[*notes, *_counters(train, chosen, kinds)],
    )


def _too_many(asked: TableSpec) -> bool:
    return asked.task in ("multiclass", "binary") and len(asked.targets) > 1


def _counters(table: Table, features: Sequence[str], kinds: Mapping[str, Any]) -> list[str]:
    """Return a line about features that only count the rows."""
    found = list[str]()
    for name in features:
        values = table.numbers(name).values if name not in kinds and len(table) > _MOST_CLASSES else np.zeros(0)
        if len(values) and np.isfinite(values).all() and (np.diff(values) == 1).all():
            found.append(name)
    told = "column {!r} counts the rows: as a feature it tells their order; data.dataset.features may leave it out"
    return [told.format(name) for name in found]


def _kinds(table: Table, name: str, policy: MissingPolicy) -> list[str]:
    """List the values of a categorical column, in order."""
    found = {cell for cell in table.names(name).found() if not is_missing(cell)}
    if not found:
        raise UserError(f"{table.path}: column {name!r} has no value", argument="categorical", received=name)
    return sorted(found | {str(policy.constant(name))} if policy.ways[name] == "constant" else found)


def guess_task(columns: Sequence[NameColumn]) -> str:
    """Guess the kind of task from the values of the targets."""
    if any(len(column.numbers.text) for column in columns):
        return "multiclass" if len(columns) == 1 else "regression"
    if len(columns) > 1:
        return "multilabel" if all(map(_is_label, columns)) else "regression"
    few = len(columns[0].used) <= _MOST_CLASSES
    return "multiclass" if few and all(float(cell).is_integer() for cell in columns[0].found()) else "regression"


def _is_label(column: NameColumn) -> bool:
    rounded = np.isin(column.as_kinds.values[column.used], (0, 1))
    return bool(rounded.all()) and {float(cell) for cell in column.found()} <= {0, 1}


def read_targets(tables: list[Table], targets: list[str], *, task: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the targets of all tables and the names of the classes or labels."""
    if task in ("multiclass", "binary"):
        return _classes(tables, targets[0], binary=task == "binary")
    y = np.stack([np.concatenate([t.numbers(name).values for t in tables]) for name in targets], 1)
    if task == "multilabel":
        return y, tuple(targets)
    return y[:, 0] if len(targets) == 1 else y, ()


def _classes(tables: list[Table], target: str, *, binary: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    found = tables[0].names(target).found()
    names = sorted(found, key=lambda name: (float(name), name)) if all(map(is_number, found)) else sorted(found)
    if len(names) == 1:
        raise UserError(
            f"column {target!r} holds one class only",
            argument="target",
            expected="2 classes or more",
            received=names[0],
            choices=[name for name in tables[0].file.names if name != target],
        )
    if binary and len(names) != 2:
        raise UserError("binary needs a target of two values", argument="task", received=names[:5])
    y = np.concatenate([_numbered(table, target, names, "a class that the training rows lack") for table in tables])
    return (y.astype(np.float32), (names[1],)) if binary else (y, tuple(names))


def _numbered(table: Table, name: str, known: Sequence[str], problem: str, argument: str = "target") -> np.ndarray:
    """Return the cells of a column as `(N,)` places in a list of known values."""
    numbers = table.names(name).numbered({cell: i for i, cell in enumerate(known)})
    unknown = np.flatnonzero(numbers < 0)
    if len(unknown):
        line, cell = table.cell(int(unknown[0]), name)
        raise UserError(
            f"{table.path}, line {line}: {problem}",
            argument=argument,
            received=cell,
            choices=known,
            family="data-unreadable",
        )
    return numbers


def read_groups(tables: Sequence[Table], column: str) -> list[str]:
    """Return the name of the group of each row of all tables, and refuse a row without one."""
    found = list[str]()
    for table in tables:
        own = table.names(column)
        if len(own.missing):
            line, cell = table.cell(int(own.missing[0]), column)
            raise UserError(
                f"{table.path}, line {line}: the row belongs to no group",
                argument="group_column",
                expected=f"a name in column {column!r}",
                received=repr(cell),
                fix="give such a row a group of its own, or leave it out",
                family="data-unreadable",
            )
        names = {code: name for name, code in own.found().items()}
        found += [names[code] for code in own.codes.tolist()]
    return found


def read_splits(tables: dict[str, Table], split_column: str | None) -> dict[str, np.ndarray]:
    """Return the rows of each split that files or a column name, and refuse a cell that names none."""
    if split_column is None:
        ends = np.cumsum([0, *map(len, tables.values())])
        pieces = [np.arange(first, end) for first, end in pairwise(ends)]
        return dict(zip(tables, pieces, strict=True)) if len(tables) > 1 else {}
    if len(tables) > 1 or split_column not in tables["train"].columns:
        return {}  # which is told elsewhere
    named = filter(split_named, tables["train"].names(split_column).found())  # in capitals too
    known = [*dict.fromkeys([*KNOWN, *named])]
    parts = _numbered(tables["train"], split_column, known, "not a split", argument="split_column")
    return {name: found for i, name in enumerate(known) if len(found := np.flatnonzero(parts == i))}
