"""Columns of numbers and of names as arrays."""

from __future__ import annotations

import csv as plain
from pathlib import Path

from lightkit.common.csv_lines import open_csv
from lightkit.data.csv_columns import NameColumn
from lightkit.data.csv_reader import read_table
from tests.data.csv_cells import check, mixed

NUMBERS = [
    "0", "-0", "-0.0", "1e5", "1E5", "+3", " 3 ", "\t4", "5.", ".5", "1_000", "1__0", "0x10", "1e", "e1", ".", "-",
    "+-1", "1e308", "1e309", "-1e999", "1e-320", "1e-400", "3.4028235e38", "3.5e38", "1.17549435e-39", "16777217",
    "0.1", "123456789012345678901234567890", "9" * 120, "0." + "3" * 130, "1.00000005960464477539062500001", "1e+05",
    "1e 5", "nan", "NaN", "-nan", "+nan", "nan(1)", "nan0", "inf", "-Inf", "+INF", "infinity", "-Infinity", "infinite",
    "info", "", " ", "NA", "na", "Na", "n/a", "N/a", "NULL", "nUll", "None", "?", " ? ", "??", "#N/A", "true", "null ",
    "½", "²", "１２", "٣", "1\u00a0", "\u2003NA", "\x1c7\x1f", "\x1cNA", "1\u200b", "1,5", "1.5.2", "1d5", "1f",
    "0b1", "1j", "١e٢",
]  # fmt: skip
"""Numbers, what looks like one, and what stands for none."""


def test_cells_that_look_like_numbers(tmp_path: Path, parser: str) -> None:
    path = tmp_path / "t.csv"
    for cells in (NUMBERS, *([cell, "1.5", cell] for cell in NUMBERS), *(["2", "NA", cell] for cell in NUMBERS)):
        with path.open("w", newline="", encoding="utf-8") as stream:
            plain.writer(stream, quoting=plain.QUOTE_ALL).writerows([["a", "b"], *([cell, "0"] for cell in cells)])
        check(path)


def test_a_table_is_arrays(tmp_path: Path) -> None:
    file = open_csv(mixed(tmp_path / "t.csv", 3000), delimiter=",")
    table = read_table(file, numbers=["x", "y"], names=["colour"])
    held = {
        name: column.codes if isinstance(column, NameColumn) else column.values
        for name, column in table.columns.items()
    }
    assert {name: (array.dtype.name, array.shape) for name, array in held.items()} == {
        "x": ("float32", (3000,)), "y": ("float32", (3000,)), "colour": ("int32", (3000,)),
    }  # fmt: skip
