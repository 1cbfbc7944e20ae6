"""From any data set to its loaders, and what is found out about it."""

from __future__ import annotations

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import SplitSpec, TensorData, build_data
from lightkit.data.tables import digits
from tests.data.test_sources import Rows, X


def test_table_of_a_data_set() -> None:
    data = build_data(dataset=digits(), split=SplitSpec("stratified"), batch_size=100)
    facts = dict(data.describe())
    assert facts["input"] == "1 × 8 × 8"
    assert facts["outputs"] == "10 (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
    assert facts["train"] == "1258 rows, 13 batches of 100"
    assert [name for name, _ in data.describe()] == ["task", "input", "outputs", "train", "val", "test"]


def test_splits_can_be_left_out() -> None:
    data = build_data(dataset=digits(), split={"val": 0, "test": 0})
    assert (data.val, data.test, list(data.loaders())) == (None, None, ["train"])


def test_one_class_is_refused() -> None:
    with pytest.raises(UserError, match=r"there is one class only[\s\S]*2 classes or more"):
        build_data(dataset=TensorData(torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64)), split={})


def test_more_loader_processes_than_processors_are_told() -> None:
    rows = Rows([(X, row % 2) for row in range(20)])
    spec = SplitSpec(by="random", val=0.2, test=0.2)
    assert build_data(dataset=rows, split=spec, num_workers=10_000).notes[0].startswith("data.num_workers=10000: ")
    assert not build_data(dataset=rows, split=spec, num_workers=1).notes
