"""Rows and columns of a CSV file, with the line of everything that is wrong."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightkit.common.errors import UserError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""Cells that mean that there is no value, in lower case."""


@dataclass(frozen=True)
class Table:
    """Cells of a CSV file.

    Args:
        path: The file.
        columns: Cells of each column, by name, in the order of the file.
        lines: Line of each row in the file, from 1.
    """

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)

    def need(self, names: Sequence[str], *, key: str) -> None:
        """Raise `UserError` for the first name that is no column."""
        for name in names:
            if name not in self.columns:
                raise UserError(f"{self.path} has no such column", key=key, received=name, choices=self.columns)

    def without(self, rows: set[int]) -> Table:
        """The table less some rows."""
        kept = [i for i in range(len(self)) if i not in rows]
        columns = {name: [cells[i] for i in kept] for name, cells in self.columns.items()}
        return Table(self.path, columns, [self.lines[i] for i in kept])

    def holes(self, names: Sequence[str]) -> list[tuple[int, str]]:
        """Row and column of every missing or infinite cell, in the order of the rows."""
        return sorted((i, name) for name in names for i, cell in enumerate(self.columns[name]) if _is_hole(cell))

    def numbers(self, name: str, *, key: str) -> Tensor:
        """A column as `(N,)` float32.

        Raises:
            UserError: A cell is no number; its line is named.
        """
        cells = self.columns[name]
        try:
            values = [float(cell) for cell in cells]
        except ValueError as error:
            row = next(i for i, cell in enumerate(cells) if not is_number(cell))
            raise UserError(
                f"{self.path}, line {self.lines[row]}: column {name!r} holds text",
                key=key,
                expected="a number",
                received=cells[row],
                fix=f"data.dataset.categorical=[{name}] for names, or leave it out of data.dataset.features",
            ) from error
        return torch.tensor(values, dtype=torch.float64).to(torch.float32)


def read_table(path: str | Path, *, delimiter: str, key: str = "data.dataset.path") -> Table:
    """Read a CSV file whose first line names the columns.

    Raises:
        UserError: It cannot be read, has no rows, names a column twice, or a line has too few or too many cells.
    """
    file = Path(path).expanduser()
    if len(delimiter) != 1:
        raise UserError("not a delimiter", key="data.dataset.delimiter", expected="one character", received=delimiter)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=delimiter, skipinitialspace=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"the file cannot be read: {error}", key=key, received=str(file)) from error
    if len(rows) < 2:
        raise UserError("the file has no rows", key=key, expected="a line of column names and rows", received=str(file))
    header = [name.strip() for name in rows[0][1]]
    _check_shape(file, header, rows[1:], delimiter=delimiter)
    cells = [list(column) for column in zip(*(row for _, row in rows[1:]), strict=True)]
    stripped = [[cell.strip() for cell in column] for column in cells]
    return Table(file, dict(zip(header, stripped, strict=True)), [line for line, _ in rows[1:]])


def is_number(cell: str) -> bool:
    """Whether a cell is a number, `nan` and `inf` included."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_hole(cell: str) -> bool:
    return cell.lower() in MISSING or (cell.lower().lstrip("+-")[:3] in ("inf", "nan") and not _is_finite(cell))


def _is_finite(cell: str) -> bool:
    return not is_number(cell) or math.isfinite(float(cell))


def _check_shape(file: Path, header: list[str], rows: list[tuple[int, list[str]]], *, delimiter: str) -> None:
    twice = [name for i, name in enumerate(header) if name in header[:i]]
    if twice:
        raise UserError(f"{file} names a column twice", key="data.dataset.path", received=twice[0])
    for line, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{file}, line {line}: {len(row)} cells, not {len(header)}",
                key="data.dataset.path",
                received=delimiter.join(row)[:80],
                fix=f"is {delimiter!r} the delimiter (data.dataset.delimiter)?",
            )
