"""Missing values of a CSV file: what is done about them, and that people are told."""

from __future__ import annotations

import csv as plain
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.data import TensorData, build_data
from lightkit.data.csv_file import csv
from tests.conftest import Outcome
from tests.refused import refused

Cli = Callable[..., Outcome]
ROWS = ["1,2.5,red,a", ",0.5,blue,b", "3,NA,red,a", "4,inf,?,b", "5,1,red,b"]
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
    path.write_text("\n".join(["height,width,colour,kind", *rows]) + "\n")
    return str(path)


def table(folder: Path, rows: list[str] = ROWS, **settings: Any) -> TensorData:
    return csv(written(folder / "t.csv", rows), **{"target": "kind", "categorical": ["colour"], **settings})


def filled(data: TensorData) -> list[list[float]]:
    """All rows, with what is fitted to all of them."""
    made = build_data(dataset=data, split={"by": "ordered", "val": 0.0, "test": 0.0})
    inputs: list[list[float]] = made.source.x.tolist()
    return inputs


def test_each_column_is_filled_in_its_own_way(tmp_path: Path) -> None:
    missing = {"*": "mean", "width": "median", "colour": "most_frequent"}
    data = table(tmp_path, missing=missing)
    assert filled(data) == [[1, 2.5, 0, 1], [3.25, 0.5, 1, 0], [3, 1, 0, 1], [4, 1, 0, 1], [5, 1, 0, 1]]
    rows = filled(table(tmp_path, missing=missing, add_indicator=True))
    assert [row[4:] for row in rows] == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]]
    rows = filled(table(tmp_path, missing="constant"))
    assert (rows[1], rows[3]) == ([0, 0.5, 1, 0, 0], [4, 0, 0, 1, 0]), "blue, missing_value, red"
    rows = filled(table(tmp_path, missing="constant", fill_value={"height": -1, "colour": "red"}))
    assert (rows[1], rows[3]) == ([-1, 0.5, 1, 0], [4, 0, 0, 1])
    data = table(tmp_path, missing={"*": "drop", "width": "constant"}, fill_value=9)
    assert [row[:2] for row in filled(data)] == [[1, 2.5], [3, 9], [5, 1]]
    left_out = "are left out, they lack values in: height 1, colour 1"
    assert data.notes == (f"2 of the 5 rows of {tmp_path / 't.csv'} {left_out}",)


NO_COLOUR, NO_KIND = ["1,2,,a", "2,3,,b"], ["1,2,red,a", "2,,red,b", "3,3,red,"]
NUMBERS = {"features": ["height", "width"], "categorical": []}


@pytest.mark.parametrize(
    ("rows", "settings", "text"),
    [
        (ROWS, {"missing": "fill"}, "missing: unknown … median"),
        (ROWS, {"missing": {"width": "fill"}}, "missing: unknown"),
        (ROWS, {"missing": {"size": "mean"}}, "missing: the pattern matches nothing … 'size'"),
        (ROWS, {"missing": {"kind": "most_frequent"}}, "nothing can be filled in for the target 'kind'"),
        (ROWS, {"missing": {"colour": "mean"}}, "column 'colour' holds names, which have no mean … most_frequent"),
        (ROWS, {"missing": "mean"}, "column 'colour' holds names, which have no mean … {*: mean, colour: most_freq"),
        (ROWS, {"missing": {"height": "mean"}}, "line 4: column 'width' has no value … missing=drop … 3 of 5"),
        (ROWS, {"missing": "most_frequent", "fill_value": 3}, "fill_value: this is for columns"),
        (ROWS, {"missing": "constant", "fill_value": {"size": 3}}, "fill_value: this is for columns"),
        (ROWS, {"missing": "constant", "fill_value": "red"}, "fill_value: column 'height' holds numbers"),
        (ROWS, {"missing": "drop", "add_indicator": True}, "add_indicator: there is nothing to indicate"),
        (NO_COLOUR, {"missing": "drop"}, "every row lacks a value"),
        (NO_COLOUR, {"missing": "most_frequent"}, "column 'colour' has no value"),
        (NO_KIND, {**NUMBERS, "missing": "mean"}, "line 4: column 'kind' has no value … such rows out (1 of 3)"),
    ],
)
def test_what_does_not_go(tmp_path: Path, rows: list[str], settings: dict[str, Any], text: str) -> None:
    refused(lambda: table(tmp_path, rows, **settings), text)


def test_rows_without_a_target_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    assert len(table(tmp_path, NO_KIND, **NUMBERS, missing={"*": "mean", "kind": "drop"})) == 2


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
    line = "2 of the 62 rows of t.csv are left out, they lack values in: width 2, height 1"
    outcome = cli(*TRAIN, "data.dataset.missing=drop")
    assert outcome.code == 0, outcome.err
    assert line in outcome.out
    assert line in (project / "run" / "run.log").read_text()
    assert line in str(json.loads(cli("plan", *TRAIN[2:], "data.dataset.missing=drop", "--json").out)["notes"])
    caplog.clear()
    assert line not in cli("predict", "run", "--output", "-").out
    assert line in caplog.messages


@pytest.mark.thorough
def test_new_files_and_resumed_runs_are_filled_with_what_the_run_has_fitted(cli: Cli, project: Path) -> None:
    def kept(name: str, file: str = "environment.json", part: str = "filling") -> Any:
        return json.loads((project / name / file).read_text())[part]

    def predicted(name: str) -> list[list[str]]:
        done = cli("predict", "run", f"data.dataset.test_path={name}.csv", "--output", f"{name}-out.csv")
        assert done.code == 0, done.err
        with (project / f"{name}-out.csv").open() as file:
            return list(plain.reader(file))

    written(project / "t.csv", rows_with_holes(0, 80))
    outcome = cli(*TRAIN, BY_COLUMN)
    assert outcome.code == 0, outcome.err
    values = kept("run")["values"]
    assert f"(mean {values['height'][0]:g}), width " in outcome.out
    assert cli("resume", "run", "trainer.epochs=2").code == 0
    assert cli(*TRAIN, BY_COLUMN, "trainer.epochs=2", "hydra.run.dir=whole").code == 0
    assert kept("run", "result.json", "test") == kept("whole", "result.json", "test")
    assert cli("train", "--from", "run", "hydra.run.dir=again").code == 0
    assert kept("run") == kept("again")
    holes = rows_with_holes(1, 20)
    known = [values["height"][0], values["width"][0], ["blue", "red"][int(values["colour"][1])]]
    full = [[cell or str(value) for cell, value in zip(row.split(","), [*known, ""], strict=True)] for row in holes]
    written(project / "new.csv", holes)
    written(project / "full.csv", [",".join(row) for row in full])
    assert predicted("new") == predicted("full")
    assert len(predicted("new")) == 21
