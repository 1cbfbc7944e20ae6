"""Scaling fitted on training rows, and mixup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import Data, DataInfo, TensorData, build_data
from lightkit.data.prepare import Mixup

INFO = DataInfo("multiclass", (3,), 4)


def data(x: torch.Tensor, normalize: str = "standard", **settings: Any) -> Data:
    y = torch.arange(len(x)) % 4
    split = {"by": "ordered", "val": 0.25, "test": 0.25}
    return build_data(**{"dataset": TensorData(x, y), "split": split, "normalize": normalize, **settings})


def test_mixup_mixes_inputs_and_targets_alike() -> None:
    x = torch.eye(8)
    made = data(torch.cat([x, x]), "none", mixup={"alpha": 0.5}, batch_size=4, split={"val": 0, "test": 0})
    for mixed, shares in made.train.epoch(0):
        assert torch.allclose(shares.sum(1), torch.ones(len(shares)))
        assert torch.allclose(mixed.reshape(-1, 2, 4).sum(1), shares, atol=1e-6)
    assert made.evaluation("train").mixup is None  # type: ignore[union-attr]


def test_mixup_depends_on_the_position_of_the_batch() -> None:
    made = data(torch.randn(80, 3), "none", mixup={"alpha": 1.0}, batch_size=8)
    whole, tail = list(made.train.epoch(1)), list(made.train.epoch(1, 16))
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(whole[2:], tail, strict=True))
    assert not torch.equal(whole[0][0], next(made.train.epoch(0))[0])


def test_mixup_probability_and_strength() -> None:
    x, y = torch.randn(16, 3), torch.arange(16) % 4
    weights = []
    for seed in range(300):
        ((mixed, shares),) = Mixup(0.3, 0.4, seed=seed, info=INFO).mixed(iter([(x, y)]), epoch=0, start=0)
        assert shares.shape == (16, 4)
        weights.append(0.0 if torch.equal(mixed, x) else 1.0)
    assert 0.3 < np.mean(weights) < 0.5


@pytest.mark.parametrize(
    ("settings", "info", "text"),
    [
        ({"alpha": 0.0}, INFO, r"mixup.alpha: not a parameter"),
        ({"alpha": 1.0, "probability": 1.5}, INFO, "mixup.probability: not a share"),
        ({"alpha": 1.0}, DataInfo("language_modeling", (8,), 5), "language_modeling targets cannot be mixed"),
    ],
)
def test_bad_mixup(settings: dict[str, Any], info: DataInfo, text: str) -> None:
    with pytest.raises(UserError, match=text):
        Mixup(**settings, seed=0, info=info)


def test_mixup_of_regression_targets_keeps_their_shape() -> None:
    pair = (torch.randn(6, 2), torch.randn(6))
    ((_, y),) = Mixup(1.0, seed=0, info=DataInfo("regression", (2,), 1)).mixed(iter([pair]), epoch=0, start=0)
    assert y.shape == (6,)
    assert not torch.equal(y, pair[1])
