"""Columns of a table as a whole, with the place of everything that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightkit.common.csv_lines import CsvFile
from lightkit.common.errors import Problems, UserError
from lightkit.common.text import is_number
from lightkit.data.csv_columns import PLAIN, NameColumn, NumberColumn, Spelling, join, number_column, parse_names, texts
from lightkit.data.table_cache import copy_of, load_columns, save_columns
from lightkit.data.table_sources import TableSource

Columns = dict[str, NumberColumn | NameColumn]


@dataclass(frozen=True)
class Table:
    """Columns of a table.

    Args:
        source: Where it comes from.
        columns: Those that were read, by name.
        rows: `(N,)` number of each row among all rows of the table, from 0.
    """

    source: TableSource
    columns: Columns
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def path(self) -> str:
        """Return what messages call it."""
        return self.source.label

    def without(self, rows: np.ndarray) -> Table:
        """Return the table less the rows of a mask `(N,)`."""
        kept = np.flatnonzero(~rows)
        columns = {name: column.take(kept) for name, column in self.columns.items()}
        return Table(self.source, columns, self.rows[kept])

    def names(self, name: str) -> NameColumn:
        """Return a column that was read as names."""
        column = self.columns[name]
        assert isinstance(column, NameColumn), "it was read as names"
        return column

    def numbers(self, name: str) -> NumberColumn:
        """Return a column as numbers."""
        column = self.columns[name]
        return column.numbers if isinstance(column, NameColumn) else column

    def cell(self, row: int, name: str) -> tuple[str, str]:
        """Return file and line of a row, or its number, and its cell in a column; reads the table again."""
        return self.source.cell(int(self.rows[row]), name)

    def fault(self, row: int, name: str, what: str, **facts: Any) -> UserError:
        """Return the error of a cell: where it is, what is wrong, and further facts as of `UserError`."""
        place, cell = self.cell(row, name)
        return UserError(f"{place}: {what}", **{"received": cell, **facts})


def class_words(table: Table, target: str) -> list[str]:
    """Return the classes of a target as they are written, in order."""
    found = table.names(target).found()
    return sorted(found, key=lambda name: (float(name), name)) if all(map(is_number, found)) else sorted(found)


def read_table(
    source: TableSource,
    *,
    numbers: Sequence[str],
    names: Sequence[str],
    spelling: Spelling = PLAIN,
    wrong: list[UserError] | None = None,
    cached: bool = False,
) -> Table:
    """Read columns of a table.

    Args:
        source: Where it comes from.
        numbers: Columns of numbers; other cells are remembered.
        names: Columns of names.
        spelling: How numbers are written.
        wrong: Gets the error of lines with too few or too many cells, which are left out; None raises it.
        cached: Take the columns from a decoded copy of a large file, and leave one for the next time.

    Raises:
        UserError: It cannot be read, has no rows, or a line has too few or too many cells.
    """
    wanted, rows = [*dict.fromkeys([*names, *numbers])], list[np.ndarray]()
    copy = copy_of(source.files if cached else (), [source.spelling, *map(sorted, (numbers, names)), str(spelling)])
    if found := load_columns(copy):
        return Table(source, found, np.arange(len(next(iter(found.values())))))
    pieces: dict[str, list[Any]] = {name: [] for name in wanted}
    uneven = dict[CsvFile, list[tuple[int, int, str]]]()
    for block in source.blocks(wanted):
        rows.append(block.numbers)
        if block.file is not None:
            uneven.setdefault(block.file, []).extend(block.uneven)
        for name in wanted:
            cells, how = block.columns[name], spelling if name in numbers else PLAIN
            pieces[name].append(parse_names(texts(cells, how)) if name in names else number_column(cells, how))
    problems = Problems(file.uneven(lines) for file, lines in uneven.items() if lines)
    if not sum(map(len, rows)):
        what, expected = "the table has no rows", "rows below the names of the columns"
        problems.append(UserError(what, argument=source.argument, expected=expected, received=source.label))
        problems.raise_any()
    if wrong is None:
        problems.raise_any()
    columns: Columns = {name: join(found) for name, found in pieces.items()}
    if not problems:
        save_columns(copy, columns)
    (wrong if wrong is not None else []).extend(problems)
    return Table(source, columns, np.concatenate(rows))
