"""What a data set tells of each row is taken from attributes and features, and judged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.data import TensorData
from lightkit.data.row_facts import row_groups, row_times
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
        (None, "no such attribute … times"),
    ],
)
def test_what_is_no_time_is_refused(times: Any, text: str) -> None:
    refused(lambda: row_times(timed(times), "times"), text)
