"""Tables from CSV files; whatever is wrong is named by its line and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.data import TensorData, build_data
from lightkit.data.csv_file import csv
from tests.refused import refused

ROWS = ["1,2.5,red,a", "2,0.5,blue,b", "3,1e2,red,a", "4,-1,green,b"]
HEADER = "height,width,colour,kind"
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(rows: list[str], header: str = HEADER, name: str = "t.csv") -> str:
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return str(path)

    return writer


def table(path: str, **settings: Any) -> TensorData:
    return csv(path, **{"target": "kind", "categorical": ["colour"], **settings})


def test_columns_become_features(write: Write) -> None:
    data = table(write(ROWS))
    assert data.x.tolist() == [[1, 2.5, 0, 0, 1], [2, 0.5, 1, 0, 0], [3, 100, 0, 0, 1], [4, -1, 0, 1, 0]]
    assert data.y.tolist() == [0, 1, 0, 1]
    assert (data.info.task, data.info.class_names) == ("multiclass", ("a", "b"))
    assert table(write(ROWS), features=["width"], categorical=[]).x[:, 0].tolist() == [2.5, 0.5, 100, -1]


def test_a_column_of_groups_is_no_feature_and_keeps_rows_together(write: Write) -> None:
    rows = [f"{row},{row % 3},p{row // 4},{'ab'[row % 2]}" for row in range(60)]
    path = write(rows, "x,y,patient,kind")
    data = csv(path, "kind", group_column="patient")
    assert data.feature_names == ("x", "y")
    assert csv(path, "kind", ["x", "patient"], categorical=["patient"], group_column="patient").x.shape == (60, 16)
    parts = [{row // 4 for row in own.tolist()} for own in build_data(dataset=data, split={"val": 0.2}).rows.values()]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 15
    refused(lambda: csv(path, "kind", group_column="doctor"), "group_column: … no such column")
    path = write([rows[0], "1,1,,b"], "x,y,patient,kind")
    refused(lambda: csv(path, "kind", group_column="patient"), "line 3: the row belongs to no group")


def test_columns_of_times_and_weights_are_no_features(write: Write) -> None:
    rows = [f"{row},2024-{1 + row * 7 % 12:02},{row / 2},{'ab'[row % 2]}" for row in range(60)]
    data = csv(write(rows, "x,day,w,kind"), "kind", time_column="day", weight_column="w")
    assert data.feature_names == ("x",)
    assert data.weights[3] == "1.5"
    parts = build_data(dataset=data, split={"by": "time"}).rows
    months = {name: [1 + row * 7 % 12 for row in own.tolist()] for name, own in parts.items()}
    assert max(months["train"]) < min(months["val"]) <= max(months["val"]) < min(months["test"])


@pytest.mark.parametrize(
    ("cells", "settings", "task", "outputs"),
    [
        (["0", "1", "2", "10"], {}, "multiclass", ("0", "1", "2", "10")),
        (["1.0", "1", "0", "10"], {}, "multiclass", ("0", "1", "1.0", "10")),
        (["0.5", "1", "2", "3"], {}, "regression", 1),
        (["16777217.5", "1", "2"], {}, "regression", 1),
        ([str(n) for n in range(30)], {}, "regression", 1),
        ([str(n % 21) for n in range(100)], {}, "regression", 1),
        (["no", "yes", "no"], {"task": "binary"}, "binary", 1),
        (["0", "1", "1"], {"task": "regression"}, "regression", 1),
    ],
)
def test_task_is_found_out_or_stated(
    write: Write, cells: list[str], settings: dict[str, Any], task: str, outputs: int | tuple[str, ...]
) -> None:
    data = csv(write([f"{i},{cell}" for i, cell in enumerate(cells)], "x,y"), "y", **settings)
    assert (data.info.task, data.info.num_classes) == (task, outputs if isinstance(outputs, int) else len(outputs))
    assert data.y.is_floating_point() == (task != "multiclass")
    assert isinstance(outputs, int) or data.info.class_names == outputs


def test_classes_are_those_of_the_rows_that_stay(write: Write) -> None:
    path = write([f"{'NA' if i % 21 == 20 else i},{i % 21}" for i in range(100)], "x,y")
    assert csv(path, "y", missing="drop").info.num_classes == 20


def test_several_targets(write: Write) -> None:
    path = write(["1,0,1,1", "2,1,1,1.00000000001"], "x,a,b,near")
    labels = csv(path, ["a", "b"], ["x"])
    assert (labels.info.task, labels.info.class_names) == ("multilabel", ("a", "b"))
    assert labels.y.tolist() == [[0, 1], [1, 1]]
    assert csv(path, ["x", "b"]).info.task == csv(path, ["a", "near"]).info.task == "regression"
    assert csv(path, "x", task="regression", target_scale=2.0).y.tolist() == [0.5, 1.0]


def test_files_and_column_as_splits(write: Write) -> None:
    data = table(write(ROWS), test_path=write(["9,9,pink,b"], name="test.csv"), val_path=write(ROWS[:2], name="v.csv"))
    assert data.splits["test"].tolist() == [6]
    assert data.x[6].tolist() == [9, 9, 0, 0, 0], "a value unknown to training is none of the known ones"
    made = build_data(dataset=data, split={"by": "file"})
    assert [loader.num_samples for loader in made.loaders().values()] == [4, 2, 1]
    marked = [f"{row},{split}" for row, split in zip(ROWS, ["test", "train", "train", "val"], strict=True)]
    data = table(write(marked, HEADER + ",part"), split_column="part")
    assert {name: rows.tolist() for name, rows in data.splits.items()} == {"train": [1, 2], "val": [3], "test": [0]}
    assert data.info.input_shape == (5,)


@pytest.mark.parametrize(
    ("rows", "settings", "text"),
    [
        (ROWS, {"target": "knd"}, "target: … no such column … nearest: kind"),
        (ROWS, {"target": []}, "no column to predict"),
        (ROWS, {"features": ["hight"]}, "features: … nearest: height"),
        (ROWS, {"features": ["height", "kind"], "categorical": []}, "the target is among the features"),
        (ROWS, {"features": ["height"]}, "categorical: not among the features"),
        (ROWS, {"features": [], "categorical": []}, "no column to predict from"),
        (ROWS, {"categorical": []}, "line 2: column 'colour' holds text … 'red' … categorical=[colour]"),
        ([*ROWS, "5,,red,a"], {}, "line 6: column 'width' has no value … missing=drop … 1 of 5"),
        ([*ROWS, "5,NaN,red,a"], {}, "line 6: column 'width' has no value"),
        ([*ROWS, "5,-inf,red,a"], {}, "line 6: column 'width' is infinite"),
        ([*ROWS, "5,1,red"], {}, "line 6: 3 cells, not 4"),
        ([], {}, "the file has no rows"),
        (ROWS, {"task": "classes"}, "task: not a kind of task"),
        (ROWS, {"task": "binary", "target": "height"}, "binary needs a target of two values"),
        (ROWS, {"task": "binary", "target": ["height", "width"]}, "binary has one target column"),
        (ROWS, {"target": "kind", "task": "regression"}, "line 2: column 'kind' holds text"),
        (ROWS, {"delimiter": ";;"}, "not a delimiter"),
        (ROWS, {"delimiter": ";"}, "has one column … fix: … \"data.dataset.delimiter=','\""),
        (ROWS, {"encoding": "utf-88"}, "encoding: no such encoding … nearest: utf-8"),
        (ROWS, {"encoding": "rot13"}, "encoding: no such encoding … 'rot13'"),
        (ROWS[::2], {}, "target: column 'kind' holds one class only … 2 classes or"),
        (ROWS, {"split_column": ""}, "split_column: … no such column"),
        (ROWS, {"split_column": "part"}, "split_column: … no such column"),
        (ROWS, {"split_column": "colour", "categorical": []}, "line 2: not a split … train, training, val"),
    ],
)
def test_bad_tables(write: Write, rows: list[str], settings: dict[str, Any], text: str) -> None:
    refused(lambda: table(write(rows), **settings), text)


def test_bad_files(write: Write, tmp_path: Path) -> None:
    refused(lambda: table(str(tmp_path / "none.csv")), "path: the file cannot be read … none.csv")
    refused(lambda: table(write(["1,2"], "a,a"), target="a"), "names a column twice")
    good, other = write(ROWS), str(tmp_path / "test.csv")
    write(['1,1,"red\n\n",a', "", "1,1,red,c"], name="test.csv")
    refused(lambda: table(good, test_path=other), "test.csv, line 6: a class that the training rows lack … 'c'")
    write(["1"], "height", name="test.csv")
    refused(lambda: table(good, test_path=other), "test_path: … no such column")
    write(['1,2,"train"', "", '1,3,"te\nst"'], "x,y,part", name="test.csv")
    refused(lambda: csv(other, "y", split_column="part"), "test.csv, line 5: not a split")
    (tmp_path / "raw.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    refused(lambda: table(str(tmp_path / "raw.csv")), "not written in utf-8 … data.dataset.encoding=cp1252")
    refused(lambda: table(str(tmp_path)), "raw.csv … test.csv has other columns than raw.csv: lacks height, width")


@pytest.mark.parametrize(("mark", "typed"), [(";", ";"), ("\t", "\\t"), ("|", "|")])
def test_another_delimiter_is_recognised(write: Write, mark: str, typed: str) -> None:
    path = write([row.replace(",", mark) for row in ROWS], HEADER.replace(",", mark))
    refused(lambda: table(path), f"delimiter: … one column … fix: … \"data.dataset.delimiter='{typed}'\"")
    assert len(table(path, delimiter=mark)) == len(table(path, delimiter=typed)) == len(ROWS)
