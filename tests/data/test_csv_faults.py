"""Columns that hold neither numbers nor a few names: each kind is told in a sentence of its own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lightkit.common.errors import UserErrors
from lightkit.data.csv_file import csv
from tests.conftest import Outcome
from tests.refused import refused

ROWS = 40
CELLS: dict[str, tuple[Any, str]] = {
    "decimal comma": (lambda row: f'"{row},5"', "holds numbers with a decimal comma … decimal=','"),
    "german": (lambda row: f'"{row + 1}.{row + 100},5"', "points between thousands … thousands='.'"),
    "thousands": (lambda row: f'"{row + 1},{row + 100}.5"', "commas between thousands … thousands=','"),
    "date": (lambda row: f"2020-01-{row % 28 + 1:02d}", "holds dates or times … dates=[x]"),
    "German date": (lambda row: f"{row % 28 + 1}.1.2020", "holds dates or times … dates=[x]"),
    "US date": (lambda row: f"{row % 12 + 1}/{row % 28 + 1}/2020", "holds dates or times … dates=[x]"),
    "month": (lambda row: f'"Mar {row % 28 + 1}, 2020"', "holds dates or times … dates=[x]"),
    "weekday": (lambda row: f"Tue {row % 28 + 1}-Okt-20", "holds dates or times … dates=[x]"),
    "clock": (lambda row: f"{row % 12 + 1}:30 PM", "holds dates or times … dates=[x]"),
    "time": (lambda row: f"2020-01-01T12:00:{row:02d}Z", "holds dates or times … dates=[x]"),
    "id": (lambda row: f"p-{row:05d}", "as an id does … features=[height]"),
    "free text": (lambda row: f"the {row} quick brown foxes", "holds free text … data.dataset.text=[x]"),
    "unit": (lambda row: f"{row} kg", "with a unit or a sign … name of the column"),
    "percent": (lambda row: f"{row}%", "with a unit or a sign … name of the column"),
    "money": (lambda row: f"$ {row}.5", "with a unit or a sign … name of the column"),
    "mixed": (lambda row: "old" if row == 3 else str(row), "text in some rows and numbers in most … left empty"),
    "names": (lambda row: "red" if row % 2 else "blue", "holds text … categorical=[x]"),
}


def table(path: Path, cell: Any) -> str:
    rows = (f"{row * row},{cell(row)},{'ab'[row % 2]}" for row in range(ROWS))
    path.write_text("\n".join(["height,x,kind", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize("kind", CELLS)
def test_each_kind_of_text_has_its_own_sentence_and_fix(tmp_path: Path, kind: str) -> None:
    cell, text = CELLS[kind]
    path = table(tmp_path / "t.csv", cell)
    message = str(refused(lambda: csv(path, "kind"), text))
    assert ("categorical" in message) == (kind == "names"), "no hundreds of inputs are advised"
    if kind in ("decimal comma", "id", "date"):
        refused(lambda: csv(path, "x", features=["height"]), "target: … these are no classes")
        assert csv(path, "x", features=["height"], task="multiclass").info.num_classes > 20


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("decimal comma", {"decimal": ","}),
        ("german", {"decimal": ",", "thousands": "."}),
        ("thousands", {"thousands": ","}),
    ],
)
def test_the_advice_about_numbers_works(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    path = table(tmp_path / "t.csv", CELLS[kind][0])
    plain = [row + 0.5 if kind == "decimal comma" else 1000 * (row + 1) + row + 100.5 for row in range(ROWS)]
    assert csv(path, "kind", **settings).x[:, 1].tolist() == plain
    targets = csv(path, "x", features=["height"], **settings)
    assert (targets.info.task, targets.y.tolist()) == ("regression", plain)


@pytest.mark.parametrize("cells", [("1,5", "2.5"), ("1,5", "1.234"), ("1.2,5", "2,5"), ("1,2,3", "1,5")])
def test_a_point_in_a_number_with_a_comma_is_not_read_as_something_else(tmp_path: Path, cells: tuple[str, str]) -> None:
    path = table(tmp_path / "t.csv", lambda row: f'"{cells[row % 2]}"')
    refused(lambda: csv(path, "kind", decimal=","), "column 'x' holds")


def test_too_many_names_are_no_inputs_unless_that_is_meant(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", CELLS["decimal comma"][0])
    text = "column 'x' would be 40 inputs: it holds numbers with a decimal comma"
    refused(lambda: csv(path, "kind", categorical=["x"], max_categories=20), text)
    assert csv(path, "kind", categorical=["x"], max_categories=40).x.shape == (ROWS, 41)
    path = table(tmp_path / "n.csv", lambda row: row)
    text = "would be 40 inputs: it holds numbers … leave it out of data.dataset.cat"
    refused(lambda: csv(path, "kind", categorical=["x"], max_categories=20), text)


def test_a_column_that_counts_the_rows_is_told(tmp_path: Path) -> None:
    notes = csv(table(tmp_path / "t.csv", lambda row: row), "kind").notes
    assert [note for note in notes if "'x' counts the rows" in note]
    assert not [note for note in notes if "height" in note]


@pytest.mark.parametrize(
    ("cell", "first"),
    [
        (lambda row: f"{row * row:05d}", "00000"),
        (lambda row: f" {row * row % 7 + 994:04d} ", "0994"),
        (lambda row: "" if row == 1 else f"{row * row:05d}", "00000"),
        (lambda row: f"{row % 12 + 1:02d}", ""),
        (lambda row: f"{row / 7:05.2f}", ""),
        (lambda row: 0 if row % 2 else 100, ""),
    ],
    ids=["ids", "codes", "with a gap", "months", "fractions", "plain"],
)
def test_numbers_with_zeros_before_them_are_told(tmp_path: Path, cell: Any, first: str) -> None:
    path = table(tmp_path / "t.csv", cell)
    notes = [note for note in csv(path, "kind", missing="mean").notes if "zeros before its numbers" in note]
    assert [f"({first!r}): data.dataset.categorical=[x]" in note for note in notes] == [True] * bool(first)
    assert not csv(path, "kind", categorical=["x"], missing="most_frequent").notes


def bad_table(folder: Path) -> None:
    cells = (f'p{row:04d},"{row},5",2020-01-{row % 28 + 1:02d}' for row in range(40))
    rows = ["id,income,born,height,part,kind"]
    for i, row in enumerate(cells):
        rows.append(f"{row},{'' if i == 3 else i * i},{'tset' if i == 5 else 'train'},{'ab'[i % 2]}")
    (folder / "t.csv").write_text("\n".join([*rows, "1,2", "3"]) + "\n")


SAID = (
    "line 42: 2 cells, not 6; 1 more line is uneven (line 43)",
    "line 5: column 'height' has no value",
    "column 'id' holds another text in nearly every row",
    "column 'income' holds numbers with a decimal comma",
    "column 'born' holds dates or times",
    "line 7: not a split",
    "no such column",
)


def test_the_command_tells_them_with_the_mistakes_of_the_configuration(
    cli: Callable[..., Outcome], project: Path
) -> None:
    bad_table(project)
    settings = ("data=csv", "data.dataset.path=t.csv", "data.dataset.target=kind", "data.dataset.split_column=part")
    columns = "data.dataset.features=[id,income,born,height,weight]"
    done = cli("train", *settings, columns, "optim.lrr=1")
    assert done.code == 2
    assert all(said in done.err for said in (*SAID, "optim.lrr: ", f"{len(SAID) + 1} problems found"))
    assert not (project / "outputs").exists()


def test_one_line_to_paste_reads_columns_of_all_kinds(cli: Callable[..., Outcome], project: Path) -> None:
    rows = (
        f"2020-01-{i % 28 + 1:02d},{'xy'[i % 2]},the {i} quick brown foxes,p-{i:05d},{i * i},{i / 7}" for i in range(40)
    )
    (project / "t.csv").write_text("\n".join(["am Tag,c=d,größe,id,n,y", *rows]) + "\n")
    settings = ("data=table", "data.dataset.path=t.csv", "data.dataset.target=y", "trainer.epochs=1")
    line = cli("train", *settings).err.partition("in one line: ")[2].splitlines()[0]
    assert """'data.dataset.dates=["am Tag"]'""" in line
    done = cli("train", *settings, *shlex.split(line))
    assert done.code == 0, done.err
    assert "input 272," in done.out, "1 number, 13 parts of the date, 2 names, 256 hashed words"


@pytest.mark.parametrize("given", [2**60 + np.arange(60) * 3, 1_700_000_000 + np.arange(60), -(2**40) - np.arange(60)])
def test_whole_numbers_that_become_one_are_told(tmp_path: Path, given: Any) -> None:
    made = pd.DataFrame({"x": given, "y": np.arange(60) / 7})
    made.to_csv(tmp_path / "t.csv", index=False)
    for data in (csv(frame=made, target="y"), csv(str(tmp_path / "t.csv"), "y")):
        assert [note for note in data.notes if f"such as {given[0]}, so that many become one" in note]
    spread = made.assign(x=np.random.default_rng(0).integers(0, 2**62, 60))
    assert not csv(frame=spread, target="y").notes


MARKS: dict[str, tuple[Any, str]] = {
    "time_column": (
        lambda row: "soon" if row == 4 else f"2020-01-{row + 1:02d}",
        "line 6: the row has no time … 'soon'",
    ),
    "weight_column": (lambda row: "-1" if row == 4 else "2", "line 6: the row has no weight … '-1'"),
    "group_column": (lambda row: "NA" if row == 4 else "p", "line 6: the row belongs to no group … 'NA'"),
}


@pytest.mark.parametrize("argument", MARKS)
def test_a_row_that_lacks_time_weight_or_group_is_named_by_its_line(tmp_path: Path, argument: str) -> None:
    cell, text = MARKS[argument]
    refused(lambda: csv(table(tmp_path / "t.csv", lambda row: cell(row % 28)), "kind", **{argument: "x"}), text)


def test_numbers_with_a_text_among_them_are_no_classes(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", lambda row: "x" if row == 3 else row / 2)
    refused(
        lambda: csv(path, "x", features=["height"]), "line 5: column 'x' holds text in some rows … 'x' … task=multi"
    )
    whole = table(tmp_path / "w.csv", lambda row: "other" if row % 9 == 0 else row % 9)
    assert csv(whole, "x", features=["height"]).info.num_classes == 9
    refused(lambda: csv(frame={"x": [1.5], "y": [3]}, target="y"), "one class only … data.dataset.task=regression")


def test_names_may_be_the_target_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("width,kind\n1,a\n2,b\n")
    error = refused(lambda: csv(str(tmp_path / "t.csv"), "sort"), "target: … no such column")
    assert not isinstance(error, UserErrors)


def test_a_table_is_judged_without_torch(tmp_path: Path) -> None:
    bad_table(tmp_path)
    code = f"""
import sys
from lightkit.common.errors import Problems
from lightkit.data.csv_table import read_tables
from lightkit.data.table_spec import TableSpec
problems = Problems()
with problems.noted():
    read_tables(TableSpec({str(tmp_path / "t.csv")!r}, 'kind', split_column='part'))
print(len(problems), 'torch' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(SAID) - 1), "False"]
