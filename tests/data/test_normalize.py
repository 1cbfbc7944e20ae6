"""Scaling of inputs, fitted on training rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.data.normalize import Normalizer, fit
from tests.data.test_prepare import data
from tests.data.test_sources import Rows


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
    single = data(x, dataset=Rows([(x[row], row % 4) for row in range(80)]))
    assert torch.allclose(inputs(single.test), inputs(made.test), atol=1e-6), "read one by one"


def test_minmax_and_constant_columns() -> None:
    x = torch.rand(80, 3) * 7 - 3
    x[:, 1] = 0.1
    for kind in ("minmax", "standard"):
        made = inputs(data(x, kind).evaluation("train"))
        assert torch.isfinite(made).all()
        assert made[:, 1].abs().max() < 1e-6
    low = inputs(data(x, "minmax").evaluation("train"))
    assert [float(low[:, 0].min()), float(low[:, 0].max())] == [0.0, 1.0]


def test_large_means_lose_no_digits_and_what_is_fitted_comes_back() -> None:
    x = torch.randn(64, 1, dtype=torch.float64) + 1e6
    scaling = fit("standard", x.split(7))
    assert scaling is not None
    assert float(scaling.scale) == pytest.approx(float(x.std(correction=0)), rel=1e-5)
    assert torch.equal(scaling(x), Normalizer(**scaling.state_dict())(x))
    assert fit("none", []) is None


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_image_scales_channels(kind: torch.dtype) -> None:
    x = (torch.rand(80, 2, 5, 5) * torch.tensor([200.0, 90.0])[:, None, None]).to(kind)
    made = data(x, "image")
    train = inputs(made.evaluation("train"))
    assert torch.allclose(train.mean((0, 2, 3)), torch.zeros(2), atol=1e-5)
    assert torch.allclose(train.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-4)
    assert made.normalizer is not None
    assert made.normalizer.shift.shape == (2, 1, 1)
