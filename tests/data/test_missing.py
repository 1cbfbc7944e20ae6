"""Missing values of a CSV file: what is done about them, and that people are told."""

from __future__ import annotations

import csv as plain
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserError
from lightkit.data import TensorData, build_data
from lightkit.data.csv_file import csv
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
ROWS = ["1,2.5,red,a", ",0.5,blue,b", "3,NA,red,a", "4,inf,?,b", "5,1,red,b"]
HEADER = "height,width,colour,kind"
TRAIN = (
    "train",
    "hydra.run.dir=run",
    "data=csv",
    "data.dataset.path=t.csv",
    "data.dataset.target=kind",
    "data.dataset.categorical=[colour]",
    "trainer.epochs=1",
    "model.hidden=[4]",
    "logger.tensorboard.enabled=false",
    "device=cpu",
)
BY_COLUMN = "data.dataset.missing={*: mean, colour: most_frequent}"


def written(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return str(path)


def table(folder: Path, **settings: Any) -> TensorData:
    return csv(written(folder / "t.csv", ROWS), **{"target": "kind", "categorical": ["colour"], **settings})


def filled(data: TensorData) -> list[list[float]]:
    """All rows, with what is fitted to all of them."""
    made = build_data(dataset=data, split={"by": "ordered", "val": 0.0, "test": 0.0})
    inputs: list[list[float]] = made.source.x.tolist()
    return inputs


def test_each_column_is_filled_in_its_own_way(tmp_path: Path) -> None:
    data = table(tmp_path, missing={"*": "mean", "width": "median", "colour": "most_frequent"})
    assert filled(data) == [[1, 2.5, 0, 1], [3.25, 0.5, 1, 0], [3, 1, 0, 1], [4, 1, 0, 1], [5, 1, 0, 1]]


def test_a_constant_is_a_number_or_a_kind_of_its_own(tmp_path: Path) -> None:
    rows = filled(table(tmp_path, missing="constant"))
    assert rows[1] == [0, 0.5, 1, 0, 0]
    assert rows[3] == [4, 0, 0, 1, 0], "blue, missing_value, red"
    rows = filled(table(tmp_path, missing="constant", fill_value={"height": -1, "colour": "red"}))
    assert rows[1] == [-1, 0.5, 1, 0]
    assert rows[3] == [4, 0, 0, 1]


def test_indicators_come_after_the_features(tmp_path: Path) -> None:
    rows = filled(table(tmp_path, missing={"*": "median", "colour": "most_frequent"}, add_indicator=True))
    assert [row[4:] for row in rows] == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_some_columns_are_filled_and_rows_without_others_left_out(tmp_path: Path) -> None:
    data = table(tmp_path, missing={"*": "drop", "width": "constant"}, fill_value=9)
    assert [row[:2] for row in filled(data)] == [[1, 2.5], [3, 9], [5, 1]]
    assert data.notes == (
        f"2 of the 5 rows of {tmp_path / 't.csv'} are left out, they lack values in: height 1, colour 1",
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"missing": "fill"}, r"missing: unknown[\s\S]*choices: .*median"),
        ({"missing": {"width": "fill"}}, "missing: unknown"),
        ({"missing": {"size": "mean"}}, r"missing: the pattern matches nothing[\s\S]*'size'"),
        ({"missing": {"kind": "most_frequent"}}, "nothing can be filled in for the target 'kind'"),
        ({"missing": {"colour": "mean"}}, r"column 'colour' holds names, which have no mean[\s\S]*most_frequent"),
        ({"missing": "mean"}, r"column 'colour' holds names, which have no mean[\s\S]*\{\*: mean, colour: most_freq"),
        ({"missing": {"height": "mean"}}, r"line 4: column 'width' has no value[\s\S]*missing=drop[\s\S]*3 of 5"),
        ({"missing": "most_frequent", "fill_value": 3}, "fill_value: this is for columns"),
        ({"missing": "constant", "fill_value": {"size": 3}}, "fill_value: this is for columns"),
        ({"missing": "constant", "fill_value": "red"}, "fill_value: column 'height' holds numbers"),
        ({"missing": "drop", "add_indicator": True}, "add_indicator: there is nothing to indicate"),
    ],
)
def test_what_does_not_go(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        table(tmp_path, **settings)


def test_a_target_is_never_filled(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["1,2,red,a", "2,,red,b", "3,3,red,"])
    with pytest.raises(UserError, match=r"line 4: column 'kind' has no value[\s\S]*leaves such rows out \(2 of 3\)$"):
        csv(path, "kind", ["height", "width"], missing="mean")
    assert len(csv(path, "kind", ["height", "width"], missing={"*": "mean", "kind": "drop"})) == 2


@pytest.mark.parametrize(
    ("missing", "text"), [("drop", "every row lacks a value"), ("most_frequent", "column 'colour' has no value")]
)
def test_a_column_without_any_value(tmp_path: Path, missing: str, text: str) -> None:
    path = written(tmp_path / "t.csv", ["1,2,,a", "2,3,,b"])
    with pytest.raises(UserError, match=text):
        csv(path, "kind", categorical=["colour"], missing=missing)


def rows_with_holes(seed: int, count: int, *, share: float = 0.2) -> list[str]:
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        cells = [f"{draw.gauss(0, 1):.3f}", f"{draw.gauss(5, 2):.3f}", draw.choice(["red", "red", "blue"])]
        shown = ["" if draw.random() < share else cell for cell in cells]
        rows.append(",".join([*shown, "ab"[number % 2]]))
    return rows


@pytest.mark.thorough
def test_rows_left_out_are_told(cli: Cli, project: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(project / "t.csv", [*rows_with_holes(0, 60, share=0.0), "1,,red,a", ",,red,b"])
    told = "2 of the 62 rows of t.csv are left out, they lack values in: width 2, height 1"
    outcome = cli(*TRAIN, "data.dataset.missing=drop")
    assert outcome.code == 0, outcome.err
    assert told in outcome.out
    assert told in (project / "run" / "run.log").read_text()
    assert told in cli("plan", *TRAIN[2:], "data.dataset.missing=drop").out
    assert told in str(json.loads(cli("plan", *TRAIN[2:], "data.dataset.missing=drop", "--json").out)["notes"])
    caplog.clear()
    assert told not in cli("predict", "run", "--output", "-").out
    assert told in caplog.messages


@pytest.mark.thorough
def test_new_files_are_filled_with_what_the_run_has_fitted(cli: Cli, project: Path) -> None:
    written(project / "t.csv", rows_with_holes(0, 80))
    outcome = cli(*TRAIN, BY_COLUMN)
    assert outcome.code == 0, outcome.err
    values = json.loads((project / "run" / "environment.json").read_text())["filling"]["values"]
    assert f"(mean {values['height'][0]:g}), width " in outcome.out
    holes = rows_with_holes(1, 20)
    written(project / "new.csv", holes)
    kind = ["blue", "red"][int(values["colour"][1])]
    known = [values["height"][0], values["width"][0], kind]
    split = [row.split(",") for row in holes]
    full = [",".join([*(cell or str(value) for cell, value in zip(row, known)), row[3]]) for row in split]
    written(project / "full.csv", full)
    found = []
    for name in ("new", "full"):
        outcome = cli("predict", "run", f"data.dataset.test_path={name}.csv", "--output", f"{name}-out.csv")
        assert outcome.code == 0, outcome.err
        with (project / f"{name}-out.csv").open() as file:
            found.append(list(plain.reader(file)))
    assert found[0] == found[1]
    assert len(found[0]) == 21


@pytest.mark.thorough
def test_a_resumed_run_fills_in_the_same(cli: Cli, project: Path) -> None:
    written(project / "t.csv", rows_with_holes(0, 80))
    short = (*TRAIN, BY_COLUMN, "data.dataset.add_indicator=true")
    assert cli(*short).code == 0
    assert cli("resume", "run", "trainer.epochs=2").code == 0
    assert cli(*short, "trainer.epochs=2", "hydra.run.dir=whole").code == 0
    results = [json.loads((project / name / "result.json").read_text())["test"] for name in ("run", "whole")]
    assert results[0] == results[1]
    assert cli("train", "--from", "run", "hydra.run.dir=again").code == 0
    facts = [json.loads((project / name / "environment.json").read_text())["filling"] for name in ("run", "again")]
    assert facts[0] == facts[1]
