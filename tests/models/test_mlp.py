from __future__ import annotations

import pytest
import torch

from lightkit.models import MLP


@pytest.mark.parametrize("shape", [(7,), (1, 8, 8), (3, 5)])
@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_any_input_shape_is_flattened(shape, norm):
    features = int(torch.tensor(shape).prod())
    model = MLP(features, 4, hidden=(16, 8), norm=norm, dropout=0.2, activation="gelu")
    assert model(torch.randn(5, *shape)).shape == (5, 4)


def test_names_are_stable():
    names = [name for name, _ in MLP(3, 2, hidden=(4,), norm="batch", dropout=0.5).named_parameters()]
    assert names == ["layers.linear0.weight", "layers.norm0.weight", "layers.norm0.bias", "head.weight", "head.bias"]


def test_without_hidden_layers_it_is_linear():
    model = MLP(3, 2, hidden=())
    x = torch.randn(4, 3)
    assert torch.equal(model(x), model.head(x))
