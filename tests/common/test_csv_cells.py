from __future__ import annotations

import csv
import io

from lightkit.common.csv_lines import CsvWriter, read_csv


def written(*rows: list[object]) -> str:
    file = io.StringIO(newline="")
    writer = CsvWriter(file)
    for row in rows:
        writer.row(row)
    return file.getvalue()


FORMULAS = [
    *("=1+1", "+cmd", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\tx", " =1", "\n=1", "＝1", "-1.5.2", "--1", "=-1"),
]
NUMBERS = ["-1.5", "+1e-3", "-inf", "1", "0.001", "-0"]
PLAIN = ["", "a", "a=b", "seed=0,lr=-1", "'quoted'", "it's", "two\nlines", 'say "x", or y', "'5", "é"]


def test_no_cell_is_a_formula_and_what_is_written_is_read_as_it_was() -> None:
    for text in (*FORMULAS, *NUMBERS, *PLAIN, "'=1", "''=1", "'-1.5"):
        (first, *_), (cell, *more) = csv.reader(io.StringIO(written(["head", 1], [text, -1.5, None, True]), newline=""))
        assert (first, more) == ("head", ["-1.5", "", "True"])
        assert cell == text or (cell.startswith("'") and text not in (*NUMBERS, *PLAIN)), text
        assert text not in FORMULAS or cell.startswith("'"), text
        (row,) = read_csv(io.StringIO(written([text, "b"], [text, 1]), newline=""))
        assert row == {text: text, "b": "1"}


def test_nothing_acts_on_a_terminal() -> None:
    for text in ("\x1b[2Jx", "a\rb", "\x07", "\u202eabc", "\r=1"):
        assert not {"\x1b", "\r", "\x07", "\u202e"} & {*written([text])}
