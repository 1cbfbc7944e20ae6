"""Tables as CSV, which people open in a spreadsheet: no text in a cell becomes a formula or acts on a terminal."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from typing import TextIO

from lightkit.common.text import is_number, visible

_FORMULA = re.compile(r"'*(?:\s*[=+\-@＝＋－＠]|[\t\r])")
"""How a text begins that a spreadsheet would compute, or one that was such a text before it was written."""


class CsvWriter:
    """Writes rows; a text that a spreadsheet would take for a formula begins with `'`, and numbers stay numbers.

    Args:
        file: Opened with `newline=""`.
    """

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\n")

    def row(self, cells: Iterable[object]) -> None:
        """Write one row."""
        self._writer.writerow([_safe(cell) if isinstance(cell, str) else cell for cell in cells])

    def rows(self, rows: Iterable[Iterable[object]]) -> None:
        """Write several rows."""
        for row in rows:
            self.row(row)


def read_csv(file: TextIO) -> Iterator[dict[str, str]]:
    """Read what `CsvWriter` wrote, each row by the names in the first one.

    Args:
        file: Opened with `newline=""`.
    """
    for row in csv.DictReader(file):
        yield {_plain(name): _plain(cell) for name, cell in row.items() if name is not None and cell is not None}


def _safe(text: str) -> str:
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(shown) and not is_number(shown) else shown


def _plain(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell
