"""Rows and columns of a CSV file as arrays, with the line of everything that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.csv_lines import CsvFile
from lightkit.common.errors import UserError
from lightkit.data.csv_columns import NameColumn, NumberColumn, join_names, join_numbers, parse_names, parse_numbers
from lightkit.data.csv_parser import NotPlainError, parse_any, parse_plain


@dataclass(frozen=True)
class Table:
    """Columns of a CSV file.

    Args:
        file: The file.
        columns: Those that were read, by name.
        rows: `(N,)` number of each row among all rows of the file, from 0.
    """

    file: CsvFile
    columns: dict[str, NumberColumn | NameColumn]
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.file.path

    def without(self, rows: np.ndarray) -> Table:
        """Return the table less some rows."""
        kept = np.delete(np.arange(len(self)), rows)
        columns = {name: column.take(kept) for name, column in self.columns.items()}
        return Table(self.file, columns, self.rows[kept])

    def missing(self, name: str) -> np.ndarray:
        """Return the rows whose cell in a column is missing or infinite, rising."""
        return self.columns[name].missing

    def names(self, name: str) -> NameColumn:
        """Return a column that was read as names."""
        column = self.columns[name]
        assert isinstance(column, NameColumn), "it was read as names"
        return column

    def numbers(self, name: str, *, argument: str) -> Tensor:
        """Return a column as `(N,)` float32, NaN where a value is missing.

        Args:
            name: The column.
            argument: Name of the argument that names the column, for errors.

        Raises:
            UserError: A cell is no number; its line is named.
        """
        column = self.columns[name]
        found = column.numbers if isinstance(column, NameColumn) else column
        if len(found.text):
            line, cell = self.cell(int(found.text[0]), name)
            raise UserError(
                f"{self.path}, line {line}: column {name!r} holds text",
                argument=argument,
                expected="a number",
                received=cell,
                fix=f"data.dataset.categorical=[{name}] for names, or leave it out of data.dataset.features",
            )
        return torch.from_numpy(found.values)

    def cell(self, row: int, name: str) -> tuple[int, str]:
        """Return the line of a row in the file, from 1, and its cell in a column; reads the file again."""
        line, cells = self.file.row(int(self.rows[row]))
        return line, cells[name]


def read_table(file: CsvFile, *, numbers: Sequence[str], names: Sequence[str]) -> Table:
    """Read columns of a CSV file.

    Args:
        file: The file.
        numbers: Columns of numbers; other cells are remembered.
        names: Columns of names.

    Raises:
        UserError: It cannot be read, or a line has too few or too many cells.
    """
    try:
        columns = _columns(parse_plain, file, numbers, names)
    except NotPlainError:
        columns = _columns(parse_any, file, numbers, names)
    first = next(iter(columns.values()))
    return Table(file, columns, np.arange(len(first.codes if isinstance(first, NameColumn) else first.values)))


def _columns(
    parse: Callable[[CsvFile, Sequence[str]], Iterable[list[Any]]],
    file: CsvFile,
    numbers: Sequence[str],
    names: Sequence[str],
) -> dict[str, NumberColumn | NameColumn]:
    wanted = [*dict.fromkeys([*names, *numbers])]
    pieces: dict[str, list[Any]] = {name: [] for name in wanted}
    for block in parse(file, wanted):
        for name, cells in zip(wanted, block, strict=True):
            pieces[name].append(parse_names(cells) if name in names else parse_numbers(cells))
    return {name: join_names(found) if name in names else join_numbers(found) for name, found in pieces.items()}
