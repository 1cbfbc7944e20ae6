"""Batches of samples of unlike lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.padding import Padded


def tokens(*sizes: int) -> list[Tensor]:
    return [torch.arange(1, size + 1) for size in sizes]


def test_mappings_are_padded_each_entry_with_its_value() -> None:
    samples = [
        {"input_ids": ids, "labels": ids * 2, "scores": np.ones((len(ids), 2), np.float32), "row": 7, "name": "a"}
        for ids in tokens(2, 3)
    ]
    batch = Padded({"input_ids": 9}, lengths="lengths")(samples)
    assert batch["input_ids"].tolist() == [[1, 2, 9], [1, 2, 3]]
    assert batch["labels"].tolist() == [[2, 4, -100], [2, 4, 6]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["scores"].shape == (2, 3, 2)
    assert batch["scores"][0, 2].tolist() == [0, 0]
    assert (batch["row"].tolist(), batch["name"], batch["lengths"].tolist()) == ([7, 7], ["a", "a"], [2, 3])


def test_what_is_not_as_long_as_the_input_is_stacked() -> None:
    samples = [{"input_ids": ids, "image": torch.zeros(4, 4), "pair": ids[:1]} for ids in tokens(2, 3)]
    batch = Padded(pad_to_multiple_of=8)(samples)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (2, 8),
        "image": (2, 4, 4),
        "pair": (2, 1),
        "attention_mask": (2, 8),
    }
    assert Padded()([{"a": ids, "b": torch.ones(len(ids) * 2)} for ids in tokens(1, 2)])["b"].shape == (2, 4)


@pytest.mark.parametrize("target", [0, [1.0, 0.0, 0.0, 1.0], "ids"])
def test_pairs(target: Any) -> None:
    pairs = [({"input_ids": ids}, ids if target == "ids" else target) for ids in tokens(1, 3)]
    x, y = Padded(mask=None)(pairs)
    assert list(x) == ["input_ids"]
    assert y.tolist() == ([[1, -100, -100], [1, 2, 3]] if target == "ids" else [target, target])
    x, y = Padded({"target": -1, "input": 5})([([1.0, 2.0], [0, 1]), ([1.0], [1])])
    assert (x.tolist(), y.tolist()) == ([[1, 2], [1, 5]], [[0, 1], [1, -1]])


def test_an_own_mask_is_kept_and_an_empty_sample_has_none_of_it() -> None:
    batch = Padded()([{"ids": ids, "attention_mask": torch.zeros_like(ids)} for ids in tokens(1, 2)])
    assert batch["attention_mask"].sum() == 0
    assert Padded()([{"ids": ids} for ids in tokens(0, 2)])["attention_mask"].tolist() == [[0, 0], [1, 1]]


def test_what_makes_no_batch() -> None:
    with pytest.raises(KeyError, match="b"):
        Padded()([{"a": torch.ones(1), "b": 1}, {"a": torch.ones(1)}])
    with pytest.raises(ValueError, match="too many values"):
        Padded()([(1, 2, 3)])
    with pytest.raises(UserError, match="pad_to_multiple_of"):
        Padded(pad_to_multiple_of=0)


class Ragged(Dataset[Any]):
    """Sequences of 1 to 5 numbers."""

    draws = False
    classes = ("a", "b")
    collate_fn = Padded()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> tuple[dict[str, Tensor], int]:
        return {"input_ids": torch.arange(1 + row % 5)}, row % 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_pads_wherever_an_epoch_is_entered(workers: int) -> None:
    split = {"by": "random", "val": 0.1, "test": 0.1}
    train = build_data(dataset=Ragged(), split=split, batch_size=4, num_workers=workers).train
    whole = list(train.epoch(1))
    for (x, y), (x2, y2) in zip(whole[3:], train.epoch(1, start=12), strict=True):
        assert all(torch.equal(x[name], x2[name]) for name in ("input_ids", "attention_mask"))
        assert torch.equal(y, y2)
    train.close()
