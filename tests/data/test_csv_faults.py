"""Columns that hold neither numbers nor a few names: each kind is told in a sentence of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.data.csv_file import csv

ROWS = 40
CELLS = {
    "decimal comma": (lambda row: f'"{row},5"', "holds numbers with a decimal comma", "decimal=','"),
    "german": (lambda row: f'"{row + 1}.{row + 100},5"', "points between thousands", "thousands='.'"),
    "thousands": (lambda row: f'"{row + 1},{row + 100}.5"', "commas between thousands", "thousands=','"),
    "date": (lambda row: f"2020-01-{row % 28 + 1:02d}", "holds dates or times", "features=[height]"),
    "German date": (lambda row: f"{row % 28 + 1}.1.2020", "holds dates or times", "features=[height]"),
    "US date": (lambda row: f"{row % 12 + 1}/{row % 28 + 1}/2020", "holds dates or times", "features=[height]"),
    "month": (lambda row: f'"Mar {row % 28 + 1}, 2020"', "holds dates or times", "features=[height]"),
    "weekday": (lambda row: f"Tue {row % 28 + 1}-Okt-20", "holds dates or times", "features=[height]"),
    "clock": (lambda row: f"{row % 12 + 1}:30 PM", "holds dates or times", "features=[height]"),
    "time": (lambda row: f"2020-01-01T12:00:{row:02d}Z", "holds dates or times", "features=[height]"),
    "id": (lambda row: f"p-{row:05d}", "as an id does", "features=[height]"),
    "free text": (lambda row: f"the {row} quick brown foxes", "holds free text", "data=text"),
    "unit": (lambda row: f"{row} kg", "with a unit or a sign", "name of the column"),
    "percent": (lambda row: f"{row}%", "with a unit or a sign", "name of the column"),
    "money": (lambda row: f"$ {row}.5", "with a unit or a sign", "name of the column"),
    "mixed": (lambda row: "old" if row == 3 else str(row), "text in some rows and numbers in most", "left empty"),
    "names": (lambda row: "red" if row % 2 else "blue", "holds text", "categorical=[x]"),
}


def table(path: Path, cell: Any) -> str:
    rows = (f"{row * row},{cell(row)},{'ab'[row % 2]}" for row in range(ROWS))
    path.write_text("\n".join(["height,x,kind", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("kind", CELLS)
def test_each_kind_of_text_has_its_own_sentence_and_fix(tmp_path: Path, kind: str) -> None:
    cell, said, fix = CELLS[kind]
    path = table(tmp_path / "t.csv", cell)
    with pytest.raises(UserError) as caught:
        csv(path, "kind")
    message = str(caught.value)
    assert said in message
    assert fix in message.partition("fix:")[2]
    assert ("categorical" in message) == (kind == "names"), "no hundreds of inputs are advised"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("decimal comma", {"decimal": ","}),
        ("german", {"decimal": ",", "thousands": "."}),
        ("thousands", {"thousands": ","}),
    ],
)
def test_the_advice_about_numbers_works(tmp_path: Path, kind: str, settings: dict[str, str]) -> None:
    cell = CELLS[kind][0]
    path = table(tmp_path / "t.csv", cell)
    plain = [row + 0.5 if kind == "decimal comma" else 1000 * (row + 1) + row + 100.5 for row in range(ROWS)]
    plain = [value - 0.0 for value in plain]
    assert csv(path, "kind", **settings).x[:, 1].tolist() == plain
    targets = csv(path, "x", features=["height"], **settings)
    assert (targets.info.task, targets.y.tolist()) == ("regression", plain)


@pytest.mark.parametrize("cells", [("1,5", "2.5"), ("1,5", "1.234"), ("1.2,5", "2,5"), ("1,2,3", "1,5")])
def test_a_point_in_a_number_with_a_comma_is_not_read_as_something_else(tmp_path: Path, cells: tuple[str, str]) -> None:
    path = table(tmp_path / "t.csv", lambda row: f'"{cells[row % 2]}"')
    with pytest.raises(UserError, match="column 'x' holds"):
        csv(path, "kind", decimal=",")


def test_too_many_names_are_no_inputs_unless_that_is_meant(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", CELLS["decimal comma"][0])
    with pytest.raises(UserError, match=r"column 'x' would be 40 inputs: it holds numbers with a decimal comma"):
        csv(path, "kind", categorical=["x"], max_categories=20)
    assert csv(path, "kind", categorical=["x"], max_categories=40).x.shape == (ROWS, 41)
    whole = table(tmp_path / "n.csv", lambda row: row)
    with pytest.raises(UserError, match=r"would be 40 inputs: it holds numbers[\s\S]*leave it out of data.dataset.cat"):
        csv(whole, "kind", categorical=["x"], max_categories=20)


@pytest.mark.parametrize(("kind", "said"), [("decimal comma", "decimal comma"), ("id", "an id"), ("date", "dates")])
def test_a_target_of_such_text_is_no_class(tmp_path: Path, kind: str, said: str) -> None:
    path = table(tmp_path / "t.csv", CELLS[kind][0])
    with pytest.raises(UserError, match=rf"target: .*{said}.*: these are no classes"):
        csv(path, "x", features=["height"])
    assert csv(path, "x", features=["height"], task="multiclass").info.num_classes > 20


def test_a_column_that_counts_the_rows_is_told(tmp_path: Path) -> None:
    notes = csv(table(tmp_path / "t.csv", lambda row: row), "kind").notes
    assert [note for note in notes if "'x' counts the rows" in note]
    assert not [note for note in notes if "height" in note]
