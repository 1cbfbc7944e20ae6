"""Rows and columns of a CSV file, with the line of everything that is wrong."""

from __future__ import annotations

import codecs
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
    delimiter = "\t" if delimiter == "\\t" else delimiter
    if len(delimiter) != 1:
        raise UserError("not a delimiter", key="data.dataset.delimiter", expected="one character", received=delimiter)
    rows = _rows(file, delimiter=delimiter, encoding=encoding, key=key)
    if len(rows) < 2:
        raise UserError("the file has no rows", key=key, expected="a line of column names and rows", received=str(file))
    header = [name.strip() for name in rows[0][1]]
    _check_delimiter(file, header, delimiter)
    _check_shape(file, header, rows[1:], delimiter=delimiter)
    cells = [list(column) for column in zip(*(row for _, row in rows[1:]), strict=True)]
    stripped = [[cell.strip() for cell in column] for column in cells]
    return Table(file, dict(zip(header, stripped, strict=True)), [line for line, _ in rows[1:]])


def _rows(file: Path, *, delimiter: str, encoding: str, key: str) -> list[tuple[int, list[str]]]:
    """Line number and cells of every line that is not empty."""
    if file.is_dir():
        found = sorted(str(item) for item in file.glob("*.csv"))
        raise UserError("a folder, not a file", key=key, expected="a CSV file", received=str(file), choices=found)
    try:
        with file.open(newline="", encoding=_codec(encoding)) as stream:
            reader = csv.reader(stream, delimiter=delimiter, skipinitialspace=True)
            return [(reader.line_num, row) for row in reader if row]
    except UnicodeError as error:
        raise UserError(
            f"the file is not written in {encoding}: {error}",
            key=key,
            received=str(file),
            fix="data.dataset.encoding=cp1252 (most files from Windows), or the encoding it was saved in",
        ) from error
    except (OSError, csv.Error) as error:
        raise UserError(f"the file cannot be read: {error}", key=key, received=str(file)) from error


def _codec(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except LookupError as error:
        raise UserError(
            "no such encoding",
            key="data.dataset.encoding",
            received=encoding,
            choices=("utf-8", "latin-1", "cp1252", "utf-16"),
        ) from error
    return "utf-8-sig" if name == "utf-8" else name  # which leaves out a mark that Excel puts first


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


def _check_delimiter(file: Path, header: list[str], delimiter: str) -> None:
    """Refuse a single column whose name holds what looks like another delimiter."""
    if len(header) > 1:
        return
    for mark, typed in ((";", "';'"), ("\t", "'\\t'"), ("|", "'|'"), (",", "','")):
        if mark in header[0]:
            raise UserError(
                f"{file} has one column, by its first line",
                key="data.dataset.delimiter",
                received=delimiter,
                fix=f'"data.dataset.delimiter={typed}"',
            )


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
