"""Arrow's parser and Python's read the same, and the fast one reads what is common."""

from __future__ import annotations

import csv as plain
import random
import re
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.data import csv_parser, csv_reader
from tests.data.csv_cells import cells_of, check, mixed, read_all


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
    monkeypatch.setattr(csv_parser, "_BLOCK_BYTES", 64)  # so that lines, quotes and letters are cut by its end
    draw, path, good = random.Random(0), tmp_path / "t.csv", 0
    for _ in range(400):
        path.write_bytes(random_file(draw))
        try:
            cells_of(path)
        except plain.Error as error:
            with pytest.raises(UserError, match=re.escape(str(error))):
                read_all(path)
        else:
            check(path)
            good += 1
    assert good > 100


@pytest.mark.parametrize(
    "encoding", ["utf-8", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "shift_jis", "utf-7"]
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " ", "§"])
def test_encodings_and_delimiters(encoding: str, delimiter: str, tmp_path: Path) -> None:
    if encoding == "shift_jis" and delimiter == "|":
        pytest.skip("not a case of its own")
    text = "größe,b\n1,é x\n2,é\n" if encoding != "shift_jis" else "漢字,b\n1,ソ\n2,表\n"
    path = tmp_path / "t.csv"
    path.write_text(text.replace(" ", "_").replace(",", delimiter), encoding=encoding)
    check(path, delimiter=delimiter, encoding=encoding)


def test_spaces_as_delimiters(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a b\n1 2\n3  4\n")
    check(path, delimiter=" ")


def test_common_files_are_read_by_the_fast_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("the slow one")

    path = Path(mixed(tmp_path / "t.csv", 2000))
    monkeypatch.setattr(csv_reader, "parse_any", refuse)
    monkeypatch.setattr(csv_parser, "_BLOCK_BYTES", 5000)
    check(path)
    for encoding in ("latin-1", "utf-16"):
        path.write_text(path.read_text().replace("red", "rötlich"), encoding=encoding)
        check(path, encoding=encoding)
        path.write_text(path.read_text(encoding=encoding).replace("rötlich", "red"))
