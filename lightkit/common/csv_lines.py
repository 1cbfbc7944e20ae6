"""A CSV file line by line, as Python's csv module reads it: slow, exact, and with the line of everything."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from lightkit.common.errors import UserError
from lightkit.common.text import is_number, visible


@dataclass(frozen=True)
class CsvFile:
    """A CSV file whose first line names the columns.

    Args:
        path: The file.
        delimiter: What stands between two cells, one character.
        encoding: How the text is written down.
        argument: Name of the argument that gives the path, for errors.
        names: Names of the columns.
        content: All of it, where it can be read only once, as a pipe can.
        opened: Opens its bytes, where that is no plain file.
    """

    path: Path
    delimiter: str
    encoding: str = "utf-8"
    argument: str = "path"
    names: tuple[str, ...] = ()
    content: bytes | None = None
    opened: Callable[[Path], BinaryIO] | None = None

    @property
    def codec(self) -> str:
        """Return Python's name of the encoding.

        Raises:
            UserError: There is no such encoding.
        """
        try:
            io.TextIOWrapper(io.BytesIO(), encoding=self.encoding)  # some codecs make no text of bytes, such as rot13
        except LookupError as error:
            choices = ("utf-8", "latin-1", "cp1252", "utf-16")
            raise UserError("no such encoding", argument="encoding", received=self.encoding, choices=choices) from error
        name = codecs.lookup(self.encoding).name
        return "utf-8-sig" if name == "utf-8" else name  # which leaves out a mark that Excel puts first

    def stream(self) -> BinaryIO:
        """Open its bytes from the beginning."""
        if self.content is not None:
            return io.BytesIO(self.content)
        return self.opened(self.path) if self.opened else self.path.open("rb")

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number, from 1, and cells of every line that is not empty; that of the names comes first.

        Raises:
            UserError: It cannot be read.
        """
        codec = self.codec
        try:
            with io.TextIOWrapper(self.stream(), encoding=codec, newline="") as stream:
                reader = csv.reader(stream, delimiter=self.delimiter, skipinitialspace=True)
                yield from ((reader.line_num, row) for row in reader if row)
        except UnicodeError as error:
            raise UserError(
                f"the file is not written in {self.encoding}: {error}",
                argument=self.argument,
                received=str(self.path),
                fix="data.dataset.encoding=cp1252 (most files from Windows), or the encoding it was saved in",
                family="data-unreadable",
            ) from error
        except (OSError, csv.Error) as error:
            what = f"the file cannot be read: {error}"
            raise UserError(what, argument=self.argument, received=str(self.path), family="data-unreadable") from error

    def uneven(self, bad: Sequence[tuple[int, int, str]]) -> UserError:
        """Return the error of lines with too few or too many cells.

        Args:
            bad: Number of each line, its cells, and what it begins with.
        """
        (line, cells, text), shown = bad[0], [str(line) for line, *_ in bad[1:4]]
        count = "1 more line is" if len(bad) == 2 else f"{len(bad) - 1:,} more lines are"
        others = f"; {count} uneven (line {', '.join(shown)}{', …' if len(bad) > 4 else ''})" if shown else ""
        return UserError(
            f"{self.path}, line {line}: {cells} cells, not {len(self.names)}{others}",
            argument=self.argument,
            received=text,
            fix=f"is {self.delimiter!r} the delimiter (data.dataset.delimiter)?",
            family="data-unreadable",
        )


def open_csv(path: str | Path, *, delimiter: str, **how: Any) -> CsvFile:
    """Find out the columns of a CSV file.

    Args:
        path: The file.
        delimiter: What stands between two cells, one character; a backslash and a `t` mean a tab.
        **how: Further fields of `CsvFile`. With `content` the path is only a name.

    Raises:
        UserError: It cannot be read, or has no rows.
    """
    path = Path(path).expanduser()
    delimiter = "\t" if delimiter == "\\t" else delimiter
    if len(delimiter) != 1:
        raise UserError("not a delimiter", argument="delimiter", expected="one character", received=delimiter)
    file = CsvFile(path, delimiter, **how)
    file = file if file.content is not None else replace(file, content=_content(path, file.argument))
    first = [row for _, row in islice(file.lines(), 2)]
    if len(first) < 2:
        expected = "a line of column names and rows"
        raise UserError(
            "the file has no rows",
            argument=file.argument,
            expected=expected,
            received=str(path),
            family="data-unreadable",
        )
    names = tuple(name.strip() for name in first[0])
    for mark, typed in ((";", "';'"), ("\t", "'\\t'"), ("|", "'|'"), (",", "','")):
        if len(names) == 1 and mark in names[0]:  # which looks like another delimiter
            what = f"{path} has one column, by its first line"
            raise UserError(what, argument="delimiter", received=delimiter, fix=f'"data.dataset.delimiter={typed}"')
    return replace(file, names=names)


def _content(path: Path, argument: str) -> bytes | None:
    """Read a file that cannot be read twice, such as a pipe; None for others."""
    if path.is_file() or not path.exists():
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"the file cannot be read: {error}", argument=argument, received=str(path), family="data-unreadable"
        ) from error


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
