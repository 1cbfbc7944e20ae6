"""Rows and columns of a CSV file, with the line of everything that is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightkit.common.csv_text import no_rows, read_columns, read_rows, separator, unknown_columns
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
        for error in unknown_columns(self.path, self.columns, {key: names}):
            raise error

    def without(self, rows: set[int]) -> Table:
        """The table less some rows."""
        kept = [i for i in range(len(self)) if i not in rows]
        columns = {name: [cells[i] for i in kept] for name, cells in self.columns.items()}
        return Table(self.path, columns, [self.lines[i] for i in kept])

    def holes(self, names: Sequence[str]) -> list[tuple[int, str]]:
        """Row and column of every missing or infinite cell, in the order of the rows."""
        return sorted((i, name) for name in names for i, cell in enumerate(self.columns[name]) if is_missing(cell))

    def numbers(self, name: str, *, key: str, gaps: bool = False) -> Tensor:
        """A column as `(N,)` float32.

        Args:
            name: The column.
            key: Configuration key that names it.
            gaps: Whether values may be missing; they are NaN.

        Raises:
            UserError: A cell is no number; its line is named.
        """
        cells = self.columns[name]
        try:
            values = [math.nan if gaps and is_missing(cell) else float(cell) for cell in cells]
        except ValueError as error:
            row = next(i for i, cell in enumerate(cells) if not is_number(cell) and not (gaps and is_missing(cell)))
            raise UserError(
                f"{self.path}, line {self.lines[row]}: column {name!r} holds text",
                key=key,
                expected="a number",
                received=cells[row],
                fix=f"data.dataset.categorical=[{name}] for names, or leave it out of data.dataset.features",
            ) from error
        return torch.tensor(values, dtype=torch.float64).to(torch.float32)


def read_table(path: str | Path, *, delimiter: str, encoding: str = "utf-8", key: str = "data.dataset.path") -> Table:
    """Read a CSV file whose first line names the columns.

    Args:
        path: The file.
        delimiter: What stands between two cells, one character; a backslash and a `t` mean a tab.
        encoding: How the text is written down.
        key: Configuration key of the path.

    Raises:
        UserError: It cannot be read, has no rows, names a column twice, or a line has too few or too many cells.
    """
    file = Path(path).expanduser()
    options = {"delimiter": delimiter, "encoding": encoding, "key": key}
    header, rows = read_columns(file, **options), list(read_rows(file, **options))[1:]
    if not rows:
        raise no_rows(file, key)
    _check_shape(file, header, rows, delimiter=separator(delimiter))
    cells = [list(column) for column in zip(*(row for _, row in rows), strict=True)]
    stripped = [[cell.strip() for cell in column] for column in cells]
    return Table(file, dict(zip(header, stripped, strict=True)), [line for line, _ in rows])


def is_number(cell: str) -> bool:
    """Whether a cell is a number, `nan` and `inf` included."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_missing(cell: str) -> bool:
    """Whether a cell means that there is no value, or holds one that nothing can be computed with, such as `inf`."""
    return cell.lower() in MISSING or (cell.lower().lstrip("+-")[:3] in ("inf", "nan") and not _is_finite(cell))


def _is_finite(cell: str) -> bool:
    return not is_number(cell) or math.isfinite(float(cell))


def _check_shape(file: Path, header: list[str], rows: list[tuple[int, list[str]]], *, delimiter: str) -> None:
    for line, row in rows:
        if len(row) != len(header):
            raise UserError(
                f"{file}, line {line}: {len(row)} cells, not {len(header)}",
                key="data.dataset.path",
                received=delimiter.join(row)[:80],
                fix=f"is {delimiter!r} the delimiter (data.dataset.delimiter)?",
            )
