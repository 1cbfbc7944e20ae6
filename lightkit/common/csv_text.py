"""The lines of CSV files and the names of their columns, which are checked before anything of torch is imported."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from lightkit.common.errors import UserError

Row = tuple[int, list[str]]
"""Number of a line, from 1, and its cells."""


def read_rows(file: Path, *, delimiter: str, encoding: str, key: str) -> Generator[Row, None, None]:
    """Every line of a file that is not empty, one after the other.

    Args:
        file: The file.
        delimiter: What stands between two cells, one character; a backslash and a `t` mean a tab.
        encoding: How the text is written down.
        key: Configuration key of the path.

    Raises:
        UserError: It cannot be read.
    """
    mark = separator(delimiter)
    if file.is_dir():
        found = sorted(str(item) for item in file.glob("*.csv"))
        raise UserError("a folder, not a file", key=key, expected="a CSV file", received=str(file), choices=found)
    try:
        with file.open(newline="", encoding=_codec(encoding)) as stream:
            reader = csv.reader(stream, delimiter=mark, skipinitialspace=True)
            yield from ((reader.line_num, row) for row in reader if row)
    except UnicodeError as error:
        raise UserError(
            f"the file is not written in {encoding}: {error}",
            key=key,
            received=str(file),
            fix="data.dataset.encoding=cp1252 (most files from Windows), or the encoding it was saved in",
        ) from error
    except (OSError, csv.Error) as error:
        raise UserError(f"the file cannot be read: {error}", key=key, received=str(file)) from error


def read_columns(file: Path, *, delimiter: str, encoding: str, key: str) -> list[str]:
    """The names of the columns, for which the first line of the file is read; the arguments are those of `read_rows`.

    Raises:
        UserError: It cannot be read, is empty, or does not name its columns.
    """
    with closing(read_rows(file, delimiter=delimiter, encoding=encoding, key=key)) as rows:
        first = next(rows, None)
    if first is None:
        raise no_rows(file, key)
    return _names(file, first[1], separator(delimiter))


def no_rows(file: Path, key: str) -> UserError:
    """The error for a file with too few lines."""
    return UserError("the file has no rows", key=key, expected="a line of column names and rows", received=str(file))


def separator(delimiter: str) -> str:
    """The character that a delimiter means.

    Raises:
        UserError: It is none.
    """
    mark = "\t" if delimiter == "\\t" else delimiter
    if len(mark) != 1:
        raise UserError("not a delimiter", key="data.dataset.delimiter", expected="one character", received=delimiter)
    return mark


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


def _names(file: Path, cells: Sequence[str], delimiter: str) -> list[str]:
    """The names in the first line; a name that is there twice, or holds what looks like another delimiter, is none."""
    names = [cell.strip() for cell in cells]
    for mark, typed in ((";", "';'"), ("\t", "'\\t'"), ("|", "'|'"), (",", "','")):
        if len(names) == 1 and mark in names[0]:
            raise UserError(
                f"{file} has one column, by its first line",
                key="data.dataset.delimiter",
                received=delimiter,
                fix=f'"data.dataset.delimiter={typed}"',
            )
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise UserError(f"{file} names a column twice", key="data.dataset.path", received=twice[0])
    return names


def unknown_columns(file: Path, columns: Collection[str], named: Mapping[str, Sequence[str]]) -> Iterator[UserError]:
    """The errors of names that are no columns.

    Args:
        file: The file.
        columns: The names in its first line.
        named: What was asked for, by configuration key.
    """
    for key, names in named.items():
        for name in names:
            if name not in columns:
                yield UserError(f"{file} has no such column", key=key, received=name, choices=columns)
