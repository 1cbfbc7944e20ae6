"""Scaling fitted on training rows, and mixup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import Data, DataInfo, TensorData, build_data
from lightkit.data.normalize import Normalizer, fit
from lightkit.data.prepare import Mixup
from lightkit.data.sources import SampleData

INFO = DataInfo("multiclass", (3,), 4)


def data(x: torch.Tensor, normalize: str = "standard", **settings: Any) -> Data:
    y = torch.arange(len(x)) % 4
    split = {"by": "ordered", "val": 0.25, "test": 0.25}
    return build_data(**{"dataset": TensorData(x, y), "split": split, "normalize": normalize, **settings})


def inputs(loader: Any) -> torch.Tensor:
    return torch.cat([x for x, _ in loader.epoch(0)])


def test_standard_looks_at_training_rows_only() -> None:
    x = torch.randn(80, 3) * 5 + 2
    x[40:] += 100
    made = data(x)
    train = inputs(made.evaluation("train"))
    assert torch.allclose(train.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(train.std(0, correction=0), torch.ones(3), atol=1e-4)
    assert inputs(made.test).mean() > 5
    assert made.normalizer is not None
    assert torch.allclose(made.normalizer(x[60:]), inputs(made.test))


def test_minmax_and_constant_columns() -> None:
    x = torch.rand(80, 3) * 7 - 3
    x[:, 1] = 0.1
    for kind in ("minmax", "standard"):
        made = inputs(data(x, kind).evaluation("train"))
        assert torch.isfinite(made).all()
        assert made[:, 1].abs().max() < 1e-6
    low = inputs(data(x, "minmax").evaluation("train"))
    assert (low.amin(0)[0], low.amax(0)[0]) == (0.0, 1.0)


def test_large_means_lose_no_digits() -> None:
    x = torch.randn(64, 1, dtype=torch.float64) + 1e6
    scaling = fit("standard", x.split(7))
    assert scaling is not None
    assert float(scaling.scale) == pytest.approx(float(x.std(correction=0)), rel=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_image_scales_channels(kind: torch.dtype) -> None:
    x = (torch.rand(80, 2, 5, 5) * torch.tensor([200.0, 90.0])[:, None, None]).to(kind)
    made = data(x, "image")
    train = inputs(made.evaluation("train"))
    assert torch.allclose(train.mean((0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(train.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-4)
    assert made.normalizer is not None
    assert made.normalizer.shift.shape == (2, 1, 1)


def test_sample_by_sample_data_is_scaled_alike() -> None:
    x = torch.randn(80, 3) * 5 + 2
    whole = data(x)

    class Rows:
        targets = (torch.arange(80) % 4).tolist()

        def __len__(self) -> int:
            return 80

        def __getitem__(self, row: int) -> Any:
            return x[row], self.targets[row]

    single = data(x, dataset=Rows())
    assert torch.allclose(inputs(single.test), inputs(whole.test), atol=1e-6)


def test_state_round_trip() -> None:
    scaling = fit("standard", [torch.randn(9, 3)])
    assert scaling is not None
    copy = Normalizer(**scaling.state_dict())
    x = torch.randn(4, 3)
    assert torch.equal(scaling(x), copy(x))
    assert fit("none", []) is None


@pytest.mark.parametrize(
    ("kind", "x", "text"),
    [
        ("standart", torch.zeros(4, 3), r"not a way to scale[\s\S]*nearest: standard"),
        ("image", torch.zeros(4, 3), "these inputs are not images"),
        ("standard", torch.zeros(4, 3, dtype=torch.int64), "not numbers to scale"),
    ],
)
def test_bad_scalings(kind: str, x: torch.Tensor, text: str) -> None:
    with pytest.raises(UserError, match=text):
        fit(kind, [x])


def test_only_pairs_can_be_scaled() -> None:
    class Dicts:
        def __len__(self) -> int:
            return 80

        def __getitem__(self, row: int) -> Any:
            return {"x": torch.zeros(2)}

    with pytest.raises(UserError, match="only pairs of input and target"):
        data(torch.zeros(80, 3), dataset=SampleData(Dicts()))


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
