"""What a data set tells of each row is taken from attributes and features, and judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from lightkit.data import DataInfo, TensorData, build_data
from lightkit.data.row_facts import balanced, row_groups, row_times, row_weights
from tests.refused import refused


def test_an_unknown_name_has_choices() -> None:
    data = TensorData(torch.zeros(3, 3), torch.zeros(3), feature_names=["a", "b", "kind=x"])
    told = refused(lambda: row_groups(data, "patient"), "no such attribute and no such feature")
    assert told.choices == ("groups", "a", "b", "kind")


def timed(times: Any) -> Any:
    made: Any = type("Timed", (list,), {})(range(3))
    made.times = times
    return made


@pytest.mark.parametrize("times", [["2024-02-01", "2023-12-31T23:59", "2024-02-01"], [10, 9, 10], ["10", "9.5", "10"]])
def test_times_are_numbers_and_dates(times: Any) -> None:
    assert row_times(timed(times), "times").tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (["2024-02-01", "31.01.2024", "2024-02-01"], "no time … 31.01.2024 … 2024-01-31T12:00"),
        (["2024-02-01", "", "2024-02-01"], "row 1 has no time in `times`"),
        ([1.0, 2.0, float("nan")], "row 2 has no time"),
        ([1, 2], "one time for each row … 3 values"),
        (None, "does not tell the time of each row … data.dataset.time_column=COLUMN of a table"),
    ],
)
def test_what_is_no_time_is_refused(times: Any, text: str) -> None:
    refused(lambda: row_times(timed(times), "times"), text)


def test_weights_are_1_on_average_over_the_training_rows() -> None:
    source = TensorData(torch.zeros(3, 1), torch.tensor([0, 1, 1]), weights=["1", "3", "0"])
    found = row_weights(source, "weights", torch.tensor([0, 1]))
    assert found is not None
    assert found.tolist() == [0.5, 1.5, 0.0]
    assert row_weights(source, None, torch.arange(3)) is None
    refused(lambda: row_weights(source, "weights", torch.tensor([2])), "weights: all training rows have a weight of 0")


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1, -1, float("nan")], "row 1 has no number of 0 or more in `weights` (2 rows in all)"),
        (["1", "a", ""], "row 1 … (2 rows in all) … 'a'"),
        ([1, 2, float("inf")], "row 2"),
        ([1, 2], "one weight for each row … 3 values"),
    ],
)
def test_other_weights_are_named_by_row(weights: Any, text: str) -> None:
    source = TensorData(torch.zeros(3, 1), torch.tensor([0, 1, 1]), weights=weights)
    refused(lambda: build_data(dataset=source, split={"val": 0, "test": 0}), text)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    y = torch.tensor([0] * 6 + [1] * 3 + [3])
    data = build_data(dataset=TensorData(torch.zeros(10, 1), y), split={"val": 0, "test": 0})
    wanted = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=y.numpy())
    assert balanced(data.info)["weight"] == pytest.approx([*wanted[:2], 1.0, wanted[2]], abs=1e-6)
    labels = TensorData(torch.zeros(4, 1), torch.tensor([[0.0, 1, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]))
    labels.info = DataInfo("multilabel", (1,), 3)
    data = build_data(dataset=labels, split={"val": 0, "test": 0})
    assert balanced(data.info) == {"pos_weight": [1.0, 3.0, 1.0]}
    refused(lambda: balanced(DataInfo("regression", (1,), 1)), "loss.weight: the classes … not known (regression")
