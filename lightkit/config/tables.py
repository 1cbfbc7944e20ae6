"""Tables that a configuration names: their columns and cells are judged before anything else is imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lightkit.common.csv_lines import CsvFile, open_csv
from lightkit.common.errors import Problems, UserError, keys_under
from lightkit.config.origins import Key, dotted
from lightkit.config.report import Report

Node = dict[str, Any]
TABLE_FILES = ("path", "val_path", "test_path")
"""Arguments of a table that name files."""
_TEXT = {"delimiter": ",", "encoding": "utf-8"}
"""How the text of a table is read, where nothing else is said."""
_NAMING = ("target", "features", "categorical", "split_column", "group_column")
"""Arguments of a table that name columns."""
_LARGE = 64 * 2**20
"""Bytes of tables from which on they are judged when the run reads them: twice would take too long."""


def check_tables(node: Node, files: Sequence[str], key: Key, report: Report) -> None:
    """Report what is wrong with the tables of a data set.

    Args:
        node: The node of the data set.
        files: Arguments that name files which are there.
        key: Where the node stands.
        report: Gets the problems.
    """
    _check_columns(node, files, key, report)
    _check_cells(node, files, key, report)


def _check_columns(node: Node, files: Sequence[str], key: Key, report: Report) -> None:
    """Report names of columns that are not in the first lines of tables.

    Args:
        node: The node of the data set.
        files: Arguments that name files which are there.
        key: Where the node stands.
        report: Gets the problems.
    """
    asked = {part: _names(node.get(part)) for part in _NAMING}
    known: Sequence[str] = [name for names in asked.values() for name in names]
    for name in files:
        file = _open_table(node, name, key, report)
        if file is None:
            continue
        # What the first file lacks is told of it alone; of the others it is they that are wrong.
        wanted = asked if name == "path" else {name: [*dict.fromkeys(known)]}
        for part, names in wanted.items():
            for error in file.unknown(names, argument=part):
                error.put_under(dotted(key))
                report.take(error)
        known = [item for item in known if name != "path" or item in file.names]


def _check_cells(node: Node, files: Sequence[str], key: Key, report: Report) -> None:
    """Report what else is wrong in tables, where they are not large; the arguments are those above."""
    named = [name for name in TABLE_FILES if node.get(name) is not None]
    if named != [name for name in named if name in files] or "path" not in named:
        return
    stats = [Path(node[name]).expanduser() for name in named]
    if not all(path.is_file() for path in stats) or sum(path.stat().st_size for path in stats) > _LARGE:
        return
    asked = {name: value for name, value in node.items() if name != "_target_"}
    about = tuple((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in stats)
    noted = {(error.key, error.what) for error in report.errors}
    try:
        typed = json.dumps(asked)
    except TypeError:
        return  # a value that is wrong, or not known yet
    for error in _table_problems(typed, about):
        error.put_under(dotted(key))
        if (error.key, error.what) not in noted:
            report.take(error)


@cache
def _table_problems(asked: str, about: Sequence[tuple[str, int, int]]) -> tuple[UserError, ...]:
    """Judge tables once, however many runs learn from them.

    Args:
        asked: The arguments of the data set as JSON.
        about: Path, time and size of each file: others are judged anew.
    """
    from lightkit.data.csv_table import TableSpec, read_tables

    problems = Problems()
    with suppress(TypeError, ValueError, AttributeError), problems.noted():  # of values that are wrong by themselves
        read_tables(TableSpec(**json.loads(asked)))
    return tuple(problems)


def _open_table(node: Node, name: str, key: Key, report: Report) -> CsvFile | None:
    """Open a table and read the names of its columns; None where they cannot be read, which is reported."""
    file, options = Path(node[name]).expanduser(), {part: node.get(part, usual) for part, usual in _TEXT.items()}
    is_pipe = not file.is_file() and not file.is_dir()  # which gives what it has only once
    if is_pipe or not all(isinstance(value, str) for value in options.values()):
        return None
    try:
        with keys_under(dotted(key)):
            return open_csv(file, argument=name, **options)
    except UserError as error:
        report.take(error)
        return None


def _names(value: Any) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    return [item for item in listed if isinstance(item, str)]
