"""What a CSV file holds by Python's own csv module and `float`, to compare with."""

from __future__ import annotations

import csv as plain
import math
import random
from pathlib import Path
from typing import Any

import torch

from lightkit.common.csv_lines import open_csv
from lightkit.data.csv_reader import NumberColumn, Table, is_missing, is_number, read_table

PARSERS = ("parse_plain", "parse_any")


def cells_of(
    path: Path, *, delimiter: str = ",", encoding: str = "utf-8-sig"
) -> tuple[list[int], dict[str, list[str]]]:
    """Line of each row and stripped cells of each column, by the csv module."""
    with path.open(newline="", encoding=encoding) as stream:
        reader = plain.reader(stream, delimiter=delimiter, skipinitialspace=True)
        (_, header), *rows = [(reader.line_num, row) for row in reader if row]
    for line, row in rows:
        if len(row) != len(header):
            raise plain.Error(f"line {line}: {len(row)} cells, not {len(header)}")
    columns = {name.strip(): [row[i].strip() for _, row in rows] for i, name in enumerate(header)}
    return [line for line, _ in rows], columns


def number(cell: str) -> float:
    return math.nan if is_missing(cell) or not is_number(cell) else float(cell)


def check(path: Path, *, delimiter: str = ",", encoding: str = "utf-8") -> None:
    """A file is read as the csv module and `float` read it, whatever its columns are taken for."""
    lines, columns = cells_of(path, delimiter=delimiter, encoding="utf-8-sig" if encoding == "utf-8" else encoding)
    file = open_csv(path, delimiter=delimiter, encoding=encoding)
    assert file.names == tuple(columns)
    as_numbers = read_table(file, numbers=list(columns), names=[])
    as_names = read_table(file, numbers=[], names=list(columns))
    for name, cells in columns.items():
        found, text = as_numbers.columns[name], as_names.names(name)
        assert text.kinds.take(text.codes).to_pylist() == cells
        for numbers in (found, text.numbers):
            assert isinstance(numbers, NumberColumn)
            expected = torch.tensor([number(cell) for cell in cells], dtype=torch.float64).to(torch.float32)
            assert numbers.values.tobytes() == expected.numpy().tobytes(), (name, cells)
            assert numbers.missing.tolist() == [is_missing(cell) for cell in cells]
            bad = [i for i, cell in enumerate(cells) if not is_missing(cell) and not is_number(cell)]
            assert numbers.text.nonzero()[0].tolist() == bad
            if bad:
                assert as_numbers.cell(bad[0], name) == (lines[bad[0]], cells[bad[0]])


def read_all(path: Path) -> Table:
    file = open_csv(path, delimiter=",")
    return read_table(file, numbers=file.names, names=[])


def mixed(path: Path, rows: int, *, bad: tuple[int, str] = (-1, "")) -> str:
    """A file of numbers, some missing, a colour and a kind; cells with line breaks and empty lines now and then."""
    draw = random.Random(1)
    with path.open("w", newline="") as stream:
        stream.write("x,y,z,note,colour,kind\n")
        for row in range(rows):
            x = bad[1] if row == bad[0] else f"{draw.gauss(0, 1)!r}"
            y = draw.choice(["", "NA", "1.5", "2e3", "+7"])
            note = '"two\nlines, one cell"' if row % 1000 == 7 else "n"
            colour, kind = draw.choice(["red", "green", "blue "]), draw.choice(["a", "b"])
            stream.write(f"{x}, {y},{row},{note},{colour},{kind}\n" + "\n" * (row % 500 == 3))
    return str(path)


SETTINGS: dict[str, Any] = {
    "target": "kind",
    "features": ["x", "y", "z", "colour"],
    "categorical": ["colour"],
    "missing": {"y": "mean"},
}
