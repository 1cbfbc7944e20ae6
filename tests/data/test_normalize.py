"""Scaling of inputs, fitted on training rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data.normalize import Normalizer, fit
from lightkit.data.sources import SampleData
from tests.data.test_prepare import data


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
