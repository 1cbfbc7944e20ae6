"""The output layer is found in networks of every origin, and another one put in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.head import find_head, outputs_of, replace_head
from lightkit.models import CNN, MLP, TransformerClassifier, TransformerLM
from lightkit.models.zoo import timm_model, torchvision_model

OWN: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(in_features=4, num_classes=3, hidden=[5]),
    "cnn": lambda: CNN((1, 8, 8), 3),
    "transformer": lambda: TransformerClassifier((6,), 3, dim=8, depth=1, heads=2),
    "transformer_lm": lambda: TransformerLM(7, 5, dim=8, depth=1, heads=2),
}


@pytest.mark.parametrize("name", OWN)
def test_own_models_end_in_their_head(name: str) -> None:
    assert find_head(OWN[name]()) == "head"


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("mobilenet_v3_small", "classifier.3"),
        ("squeezenet1_1", "classifier.1"),
        ("vgg11", "classifier.6"),
        ("densenet121", "classifier"),
        ("convnext_tiny", "classifier.2"),
    ],
)
def test_heads_of_torchvision(name: str, head: str) -> None:
    with torch.device("meta"):
        model = torchvision_model(name, 7)
    assert find_head(model) == head
    assert outputs_of(model, head) == 7


@pytest.mark.parametrize(
    ("name", "head"), [("resnet18", "fc"), ("vit_tiny_patch16_224", "head"), ("convnext_atto", "head.fc")]
)
def test_heads_of_timm(name: str, head: str) -> None:
    with torch.device("meta"):
        model = timm_model(name, 7)
    assert find_head(model) == head


def test_without_a_usual_name_it_is_the_last_linear_layer() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.pool = nn.Linear(2, 3), nn.Linear(3, 4), nn.Identity()

    assert find_head(Odd()) == "second"


def test_a_network_of_convolutions_has_none() -> None:
    assert find_head(nn.Sequential(nn.Conv2d(1, 1, 1))) is None


def test_a_part_that_ends_in_it_may_be_named() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear(2, 2))
    assert find_head(model, "1") == "1.2"
    assert find_head(model, "1.0") == "1.0"


@pytest.mark.parametrize(
    ("name", "text"), [("haed", "no such module"), ("", "no such module"), ("pool", "not an output layer")]
)
def test_a_name_that_is_none_is_refused(name: str, text: str) -> None:
    model = CNN((1, 8, 8), 3)
    model.add_module("pool", nn.ReLU())
    with pytest.raises(UserError, match=text):
        find_head(model, name)


@pytest.mark.parametrize("layer", [nn.Linear(4, 9), nn.Linear(4, 9, bias=False), nn.Conv2d(4, 9, 1)])
def test_the_new_one_has_the_inputs_of_the_old(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Identity(), layer)
    replace_head(model, "1", 3)
    new: Any = model[1]
    assert type(new) is type(layer)
    assert outputs_of(model, "1") == 3
    assert (new.bias is None) == (layer.bias is None)
    x = torch.randn(2, 4, 1, 1) if isinstance(layer, nn.Conv2d) else torch.randn(2, 4)
    assert model(x).shape[1] == 3


def test_type_mode_and_number_of_classes_go_along() -> None:
    model = nn.Sequential(nn.Linear(4, 9)).double().eval()
    model.num_classes = 9
    replace_head(model, "0", 2)
    assert model[0].weight.dtype == torch.float64
    assert not model[0].training
    assert model.num_classes == 2


def test_ways_to_start() -> None:
    model = nn.Sequential(nn.Linear(400, 9))
    replace_head(model, "0", 50, init="zeros")
    assert model(torch.randn(1, 400)).abs().max() == 0
    replace_head(model, "0", 50, init="normal")
    assert 0.008 < model[0].weight.std() < 0.012
    assert model[0].bias.abs().max() == 0
    with pytest.raises(UserError, match="no such way to start"):
        replace_head(model, "0", 50, init="ones")
