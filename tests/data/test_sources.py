"""What is found out about any data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from lightkit.common.errors import UserError
from lightkit.data import DataInfo, TensorData, build_data
from lightkit.data.sources import as_source


class Rows:
    """Map-style data set of given samples."""

    def __init__(self, samples: list[Any], **attributes: Any) -> None:
        self.samples = samples
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Any:
        return self.samples[row]


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("dataset", "task", "shape", "outputs"),
    [
        (Rows([(X, 0), (X, 2), (X, 1)]), "multiclass", (2, 3), 3),
        (Rows([(X, 0)] * 3, classes=["a", "b"]), "multiclass", (2, 3), 2),
        (Rows([(X, 0)] * 3, classes=4), "multiclass", (2, 3), 4),
        (Rows([{"x": X, "y": 0}] * 3), "custom", (), 0),
        (Rows([{"x": X, "y": 0}] * 3, classes=["a", "b"]), "custom", (), 2),
        (Rows([(X, 0)] * 3, targets=[0, 4, 0]), "multiclass", (2, 3), 5),
        (Rows([(X.numpy(), np.int64(1))] * 3), "multiclass", (2, 3), 2),
        (Rows([(X, 0.5)] * 3), "regression", (2, 3), 1),
        (Rows([(X, torch.zeros(4))] * 3), "regression", (2, 3), 4),
        (Rows([(X, X.long())] * 3), "custom", (2, 3), 0),
        (Rows([{"a": X}] * 3), "custom", (), 0),
        (Rows([(X, 1.0)] * 3, info=DataInfo("binary", (2, 3), 1)), "binary", (2, 3), 1),
        (TensorDataset(torch.zeros(3, 2, 3), torch.tensor([0, 1, 2])), "multiclass", (2, 3), 3),
    ],
)
def test_facts_are_found_out(dataset: Any, task: str, shape: tuple[int, ...], outputs: int) -> None:
    info = as_source(dataset).info
    assert (info.task, info.input_shape, info.num_classes) == (task, shape, outputs)
    data = build_data(dataset=dataset, split={"val": 0, "test": 0})
    batch = next(data.train.epoch(0))
    if task == "regression":
        assert batch[1].dtype == torch.float32


def test_two_tensors_become_in_memory_data() -> None:
    assert isinstance(as_source(TensorDataset(torch.zeros(3, 2), torch.zeros(3))), TensorData)


def test_a_first_sample_that_raises_is_named() -> None:
    class Broken(Rows):
        def __getitem__(self, row: int) -> Any:
            raise KeyError("no such key")

    with pytest.raises(
        UserError, match=r"sample 0 of the data set .*KeyError[\s\S]*at: .*test_sources\.py:\d+"
    ) as caught:
        as_source(Broken([(X, 0)]))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (object(), r"not a data set[\s\S]*'object'"),
        (Rows([]), "the data set is empty"),
        (Rows([(X, 0)] * 10_001), "too many to read"),
        (Rows([(X, 0)] * 3, targets=[0, 1, 2], classes=["a", "b"]), "the label of row 2 is out of range"),
    ],
)
def test_bad_data_sets(dataset: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        as_source(dataset)


def test_a_stream_is_refused_in_its_own_words(cli: Callable[..., Any], project: Path) -> None:
    (project / "streams.py").write_text(
        "from torch.utils.data import IterableDataset\n\n\n"
        "class Stream(IterableDataset):\n    def __iter__(self):\n        yield from range(3)\n\n"
        "    def __len__(self):\n        return 3\n"
    )
    done = cli("train", "data=custom", "data.dataset._target_=streams.Stream")
    assert done.code == 2
    assert "data.dataset: streams are not supported yet" in done.err
    assert "Stream, an IterableDataset" in done.err
