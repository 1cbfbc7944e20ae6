from __future__ import annotations

import csv
import io

import pytest

from lightkit.common.csv_lines import CsvWriter, read_csv


def written(*rows: list[object]) -> str:
    file = io.StringIO(newline="")
    writer = CsvWriter(file)
    for row in rows:
        writer.row(row)
    return file.getvalue()


FORMULAS = [
    "=1+1",
    "+cmd",
    "-cmd|' /C calc'!A0",
    "@SUM(A1)",
    "\t=1",
    "\tx",
    " =1",
    "\n=1",
    "＝1",
    "-1.5.2",
    "--1",
    "=-1",
]
NUMBERS = ["-1.5", "+1e-3", "-inf", "1", "0.001", "-0"]
PLAIN = ["", "a", "a=b", "seed=0,lr=-1", "'quoted'", "it's", "two\nlines", 'say "x", or y', "'5", "é"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    rows = list(csv.reader(io.StringIO(written([text, 1], [text, 2]), newline="")))
    assert all(row[0].startswith("'") for row in rows)
    assert [row[1] for row in rows] == ["1", "2"]


@pytest.mark.parametrize("text", [*NUMBERS, *PLAIN])
def test_numbers_and_plain_texts_stay_as_they_are(text: str) -> None:
    assert next(csv.reader(io.StringIO(written([text, -1.5, None, True]), newline=""))) == [text, "-1.5", "", "True"]


@pytest.mark.parametrize("text", [*FORMULAS, *NUMBERS, *PLAIN, "'=1", "''=1", "'-1.5"])
def test_what_is_written_is_read_as_it_was(text: str) -> None:
    (row,) = read_csv(io.StringIO(written([text, "b"], [text, 1]), newline=""))
    assert row == {text: text, "b": "1"}


@pytest.mark.parametrize("text", ["\x1b[2Jx", "a\rb", "\x07", "\u202eabc", "\r=1"])
def test_nothing_acts_on_a_terminal(text: str) -> None:
    found = written([text])
    assert not {"\x1b", "\r", "\x07", "\u202e"} & set(found)
