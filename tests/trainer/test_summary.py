from __future__ import annotations

import math

import lightkit.trainer.report as summary
from lightkit.trainer import State


def state() -> State:
    return State(
        epoch=3,
        step=30,
        best_value=0.9,
        best_step=20,
        last={
            "train/loss": 0.5,
            "train/loss_step": 0.4,
            "val/f1/a": 1.0,
            "test/loss": math.nan,
            "lr/all": 0.1,
            "epoch": 3,
        },
    )


def test_the_result_names_objective_and_test_values() -> None:
    result = summary.result(state(), status="finished", monitor="val/f1", mode="max", name="run")
    assert result["objective"] == {"name": "val/f1", "mode": "max", "value": 0.9, "step": 20}
    assert list(result["test"]) == ["test/loss"]
    assert (result["epochs"], result["steps"], result["name"], result["reason"]) == (3, 30, "run", None)


def test_the_table_has_a_line_for_each_metric_and_a_column_for_each_split() -> None:
    columns, rows = summary.final_table(summary.final_values(state()), {})
    assert columns == ["metric", "train", "val", "test"]
    assert rows == [["loss", "0.5000", "", "nan"], ["f1/a", "", "1.0000", ""]]


def test_very_small_and_very_large_values_keep_their_digits() -> None:
    _, rows = summary.final_table({"val/a": 1.234e-7, "val/b": 98765.4, "val/c": 0.0}, {})
    assert rows == [["a", "1.234e-07"], ["b", "9.877e+04"], ["c", "0.0000"]]


def test_splits_that_were_not_evaluated_have_no_column() -> None:
    assert summary.final_table({"train/loss": 1.0}, {})[0] == ["metric", "train"]


def test_the_best_values_stand_beside_the_last_ones() -> None:
    columns, rows = summary.final_table({"val/f1": 0.8, "test/f1": 0.7}, {"val/f1": 0.9})
    assert columns == ["metric", "val", "best val", "test"]
    assert rows == [["f1", "0.8000", "0.9000", "0.7000"]]
