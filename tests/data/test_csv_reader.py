"""Reading CSV files as arrays, compared with Python's csv module and `float` cell by cell."""

from __future__ import annotations

import csv as plain
import math
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.text import is_number
from lightkit.data import csv_reader
from lightkit.data.csv_columns import NumberColumn, is_missing
from lightkit.data.csv_file import csv
from lightkit.data.table_columns import Table, read_table
from lightkit.data.table_sources import open_table
from tests.conftest import Outcome
from tests.refused import refused

FILES = {
    "plain": b"a,b\n1,2\n3,4\n",
    "an empty cell at the end": b"a,b\n1,2\n3,",
    "a delimiter at the end of one column": b"a,b\n1,\n2,",
    "lines of all kinds": b"a,b\r\n1,2\r3,4\n5,6\r\r\n7,8\n\r9,10",
    "empty lines": b"\n\na,b\n\n1,2\n\r\n\n3,4\n\n\n",
    "one column, cells of spaces": b'a\n1\n  \n""\n3\n',
    "tabs in cells": b"a,b\n\t1,2\t\nx\t, \ty\n",
    "quoted delimiters and lines": b'a,b\n"1,5","2\n3"\n"x\r\ny","\n"\n7,\n8,9\n',
    "doubled quotes": b'a,b\n"say ""hi""",""""\n"""",1\n"a""","""b"\n',
    "quotes within cells": b'a,b\n5" pipe,6"\nx"y"z,"q"r\n"q"r"s",1\n',
    "quotes behind spaces": b'a,b\n1, "2, 3"\n 4, "x\ny"\n',
    "quotes behind spaces at the start": b'  "a,b",c\n1,2\n',
    "spaces before quotes within text": b'a,b\n"he said ""no, "" twice", "x"\n',
    "an open quote": b'a,b\n1,"2\n3,4\n',
    "a byte order mark": b'\xef\xbb\xbf"a",b\n1,2\n',
    "a byte order mark in the middle": "a,b\n1,\ufeff2\n\ufeff,3\n".encode(),
    "other line ends in text": "a,b\nx\u2028y,1\x0b2\n\x85z,\x0c3\n".encode(),
    "letters": "größe,ß\nä,1\nÄ ,２\n漢字,🎉\n".encode(),
    "NUL": b"a,b\n1,\x002\n",
    "backslashes and marks of comments": b'a,b\n\\N,\\"\n"\\",1\n#1,2\n--,3\n',
    "too many cells": b"a,b\n1,2\n1,2,3\n",
    "a line of spaces": b"a,b\n1,2\n   \n",
    "another encoding": b"a,b\n1,2\n\xff,3\n",
    "half a letter at the end": b"a,b\n1,2\nx,\xc3",
}


@pytest.fixture(params=["parse_plain", "parse_any"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two ways to read a file, and none but that."""
    if request.param == "parse_any":
        monkeypatch.setattr(csv_reader, "parse_plain", refuse)


def refuse(*args: Any) -> Any:
    """Stand for the fast parser where it is not to read."""
    raise csv_reader.NotPlainError


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
    file = open_table(path, delimiter=delimiter, encoding=encoding)
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
                assert as_numbers.cell(bad[0], name) == (f"{path}, line {lines[bad[0]]}", cells[bad[0]])


def read_all(path: Path) -> Table:
    file = open_table(path)
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


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_awkward_files(content: bytes, tmp_path: Path, parser: None) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    try:
        cells_of(path)
    except (UnicodeError, plain.Error) as error:
        refused(lambda: read_all(path), str(error))
    else:
        check(path)


def test_nothing_is_done_row_by_row(tmp_path: Path) -> None:
    rows, calls = 20_000, list[str]()
    path = mixed(tmp_path / "t.csv", rows)
    csv(path, **SETTINGS)
    sys.setprofile(lambda _frame, event, _argument: calls.append(event))
    try:
        csv(path, **SETTINGS)
    finally:
        sys.setprofile(None)
    assert calls.count("call") + calls.count("c_call") < rows / 5


@pytest.mark.parametrize(
    ("row", "cell", "problem"),
    [
        (0, "oops", "holds text"),
        (1, "1e5x", "holds text"),
        (7, "NA", "has no value"),
        (8, "-inf", "is infinite"),
        (1999, '"a\nb"', "text"),
    ],
)
def test_a_bad_cell_is_named_by_file_line_and_column(tmp_path: Path, row: int, cell: str, problem: str) -> None:
    path = mixed(tmp_path / "t.csv", 2000, bad=(row, cell))
    lines = Path(path).read_text().split("\n")
    line = 1 + next(i for i, text in enumerate(lines) if text.startswith(cell.split("\n")[0]))
    line += cell.count("\n") + (row % 1000 == 7)  # as the csv module counts: where the row ends
    place = f"{path}, line {line}: column 'x' "
    refused(lambda: csv(path, **SETTINGS), f"{place} … {problem} … {cell.strip(chr(34))!r}")


def test_text_in_a_row_that_is_left_out_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y,kind\noops,NA,a\n1,2,a\n3,4,b\nbad,5,b\n")
    refused(lambda: csv(str(path), "kind", missing="drop"), "line 5: column 'x' holds text … 'bad'")
    path.write_text("x,y,kind\noops,NA,a\n1,2,a\n3,4,b\n")
    assert csv(str(path), "kind", missing="drop").x.tolist() == [[1, 2], [3, 4]]


def test_a_file_that_can_be_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("x,kind\n1,a\noops,b\n"))
    writer.start()
    refused(lambda: csv(str(tmp_path / "pipe"), "kind"), "pipe, line 3: column 'x' holds text … 'oops'")
    writer.join()


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x\n1\noops\n")
    table = read_table(open_table(path), numbers=["x"], names=[])
    path.write_text("x\n1\n")
    place = int(table.numbers("x").text.argmax())
    refused(lambda: table.cell(place, "x"), "path: the file was changed while it was being read")


def test_arrow_is_imported_for_tables_only(
    cli: Callable[..., Outcome], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pyarrow", "pyarrow.csv", "pyarrow.compute"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli("plan", "data=wine", "model.hidden=[4]", "device=cpu").code == 0


@pytest.mark.parametrize(
    ("settings", "fingerprint"),
    [
        ({}, "f51d469f0557ddb0085c5f6de58a7413"),
        ({"missing": "drop"}, "05919f439064562665218db648d62ff8"),
        ({"missing": "constant"}, "4a7d9313f75f2484ff77f0beec70bd91"),
        ({"target": "x", "features": ["y", "z", "colour"]}, "0a9e28eb6feeee61c7c080b3987da2c2"),
        ({"target": ["x", "z"], "features": ["y"], "categorical": []}, "c57ae8e3019e8fa44a326cc09d5ec09d"),
        ({"task": "binary"}, "8ea1203f9bf125116e3fa38ba169df89"),
    ],
)
def test_fingerprints_stay_what_they_were(tmp_path: Path, settings: dict[str, Any], fingerprint: str) -> None:
    path = mixed(tmp_path / "t.csv", 300)
    assert csv(path, **{**SETTINGS, **settings}).info.fingerprint == fingerprint


def random_file(draw: random.Random) -> bytes:
    """A small file of cells, quotes and ends of lines as they come, with as many cells in a line as it should have."""
    columns, newline = draw.randint(1, 3), draw.choice(["\n", "\r\n", "\r"])
    pieces = ["1", "-2.5", "x", "é", " ", "  ", '"', '""', "\t", "NA", "?", "e5", "\u00a0", "#", "'", "\\"]

    def cell() -> str:
        inside = "".join(draw.choices(pieces, k=draw.randint(0, 4)))
        if draw.random() < 0.3:
            more = draw.choice([",", "\n", "\r\n", "\r", ""])
            return f'{draw.choice(["", "", " "])}"{(inside + more).replace(chr(34), chr(34) * 2)}"'
        return inside

    lines = [",".join("abc"[:columns])]
    lines += [",".join(cell() for _ in range(columns)) + newline * draw.choice([0, 0, 0, 1]) for _ in range(8)]
    return (newline.join(lines) + draw.choice(["", newline])).encode()


@pytest.mark.thorough
def test_random_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_reader, "_BLOCK_BYTES", 64)  # so that lines, quotes and letters are cut by its end
    draw, path, good = random.Random(0), tmp_path / "t.csv", 0
    for _ in range(400):
        path.write_bytes(random_file(draw))
        try:
            cells_of(path)
        except plain.Error as error:
            refused(lambda: read_all(path), str(error))
        else:
            check(path)
            good += 1
    assert good > 100


@pytest.mark.parametrize(
    ("encoding", "delimiter"),
    [("utf-8", "\t"), ("latin-1", ";"), ("cp1252", "§"), ("utf-16", ","), ("utf-16-le", "|"), ("utf-32", " "),
     ("shift_jis", ","), ("utf-7", ";"), ("utf-8", "§"), ("utf-8", " ")],
)  # fmt: skip
def test_encodings_and_delimiters(encoding: str, delimiter: str, tmp_path: Path) -> None:
    text = "größe,b\n1,é x\n2,é\n" if encoding != "shift_jis" else "漢字,b\n1,ソ\n2,表\n"
    path = tmp_path / "t.csv"
    path.write_text(text.replace(" ", "_").replace(",", delimiter), encoding=encoding)
    check(path, delimiter=delimiter, encoding=encoding)
    path.write_text("a b\n1 2\n3  4\n")
    check(path, delimiter=" ")


def test_common_files_are_read_by_the_fast_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("the slow one")

    path = Path(mixed(tmp_path / "t.csv", 2000))
    monkeypatch.setattr(csv_reader, "parse_any", refuse)
    monkeypatch.setattr(csv_reader, "_BLOCK_BYTES", 5000)
    check(path)
    for encoding in ("latin-1", "utf-16"):
        path.write_text(path.read_text().replace("red", "rötlich"), encoding=encoding)
        check(path, encoding=encoding)
        path.write_text(path.read_text(encoding=encoding).replace("rötlich", "red"))


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


def test_cells_that_look_like_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for cells in (NUMBERS, *([cell, "1.5", cell] for cell in NUMBERS), *(["2", "NA", cell] for cell in NUMBERS)):
        with path.open("w", newline="", encoding="utf-8") as stream:
            plain.writer(stream, quoting=plain.QUOTE_ALL).writerows([["a", "b"], *([cell, "0"] for cell in cells)])
        check(path)
