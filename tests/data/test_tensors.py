"""In-memory data is checked when it is made, and rows are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import DataInfo, TensorData

X = torch.zeros(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def put(values: Any, row: int, value: float) -> Any:
    values = values.clone()
    values[row] = value
    return values


@pytest.mark.parametrize(
    ("x", "y", "info", "text"),
    [
        (X, Y[:4], None, "inputs and targets differ in number"),
        (X[:0], Y[:0], None, "there are no rows"),
        (put(X, 3, torch.nan), Y, None, r"row 3 of the inputs holds nan, element \(0,\)"),
        (put(X, 5, torch.inf), Y, None, "row 5 of the inputs holds inf"),
        (X, put(Y.float(), 2, torch.nan), None, "row 2 of the targets holds nan"),
        (X, put(Y, 1, -1), None, r"the label of row 1 is out of range\n.*0 to 2\n.*received: +-1"),
        (X, put(Y, 4, 3), DataInfo("multiclass", (2,), 3), "the label of row 4 is out of range"),
        (X, Y.float(), DataInfo("multiclass", (2,), 3), "classes are whole numbers"),
        (X, Y.float(), DataInfo("binary", (2,), 1), "row 2 has a label other than 0 and 1"),
        (X, put(torch.ones(6, 2), 1, 0.5), DataInfo("multilabel", (2,), 2), "row 1 has a label other than 0 and 1"),
    ],
)
def test_bad_data_is_refused(x: Any, y: Any, info: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        TensorData(x, y, info)


def test_infinities_that_cancel_are_found() -> None:
    with pytest.raises(UserError, match="row 0"):
        TensorData(torch.tensor([[torch.inf, -torch.inf]]), torch.zeros(1))


def test_facts_are_found_out() -> None:
    assert TensorData(X, Y).info.num_classes == 3
    assert TensorData(X, torch.zeros(6)).info.sizes()["task"] == "regression"
    assert TensorData(X, torch.zeros(6, 4)).info.num_classes == 4
    assert TensorData(X, Y.to(torch.uint8)).y.dtype == torch.int64
    assert TensorData(torch.zeros(6, 3, 4, 5), Y).info.sizes() == {
        "task": "multiclass", "num_classes": 3, "num_labels": 3, "input_shape": (3, 4, 5), "in_channels": 3,
        "in_features": 60,
    }  # fmt: skip
    with pytest.raises(UserError, match=r"not a kind of task[\s\S]*nearest: multiclass"):
        DataInfo("multiclas", (2,), 3)


def test_bytes_come_out_as_shares() -> None:
    data = TensorData(torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.arange(3))
    assert torch.equal(data.take(torch.tensor([2, 1]))[0], torch.tensor([[1.0], [0.2]]))
    x, y = data[1]
    assert (x.tolist(), int(y)) == ([pytest.approx(0.2)], 1)


def test_fingerprint_follows_the_content() -> None:
    assert TensorData(X, Y).info.fingerprint == TensorData(X.clone(), Y.clone()).info.fingerprint
    assert TensorData(X, Y).info.fingerprint != TensorData(put(X, 0, 1.0), Y).info.fingerprint
    assert TensorData(X, Y).info.fingerprint != TensorData(X, Y.flip(0)).info.fingerprint
