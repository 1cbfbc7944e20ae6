"""What is put into a network becomes part of the module that a hook changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.adapter import Adapter, inject_adapters
from lightkit.finetune.peft.blocks import find_blocks
from tests.finetune.peft import injecting as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def around(layer: nn.Module) -> nn.Module:
    return nn.ModuleDict({"layer": layer})


def adapted(layer: nn.Module, **options: Any) -> nn.Module:
    """A layer with an adapter that does something."""
    options = {"reduction": 2, **options}
    on.stir(layer, [n.removeprefix("layer.") for n in inject_adapters(around(layer), ["layer"], **options)])
    return layer


def bottleneck(adapter: Adapter, x: Tensor) -> Tensor:
    low = F.gelu(F.linear(x, adapter.down_weight, adapter.down_bias))
    return F.linear(low, adapter.up_weight, adapter.up_bias)


def test_first_of_several_outputs() -> None:
    layer, x = nn.LSTM(4, 3, bidirectional=True, batch_first=True), torch.randn(2, 5, 4)
    plain, (hidden, _) = layer(x)
    adapted(layer)
    found, (same, _) = layer(x)
    assert torch.equal(same, hidden)
    torch.testing.assert_close(found, plain + bottleneck(layer.adapter, plain))  # type: ignore[arg-type]


def test_named_tuples_stay_what_they_are() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            return Pair(self.fc(x), x)

    block, x = Block(), torch.randn(2, 4)
    plain = block(x)
    adapted(block)
    found = block(x)
    assert type(found) is Pair
    assert not torch.equal(found.first, plain.first)
    assert torch.equal(found.second, x)


def test_padding_in_eval_mode() -> None:
    """The encoder's nested tensors and the layers' fast path would leave the adapter out, or stumble over it."""
    model = on.frozen(on.made(on.encoder))
    x = torch.randn(3, 5, 16)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2]])
    on.stir(model, inject_adapters(model, find_blocks(model), reduction=4))
    found = model(x, src_key_padding_mask=padding)
    model.train()
    torch.testing.assert_close(found, model(x, src_key_padding_mask=padding), atol=1e-5, rtol=1e-5)


def test_one_module_in_two_places_gets_one() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert len(inject_adapters(model, ["0", "2"], reduction=2)) == 4


def test_blocks_that_cannot_be() -> None:
    model = nn.ModuleDict({"list": nn.ModuleList([nn.Linear(2, 2)]), "act": nn.ReLU(), "fc": nn.Linear(8, 8)})
    with pytest.raises(UserError, match=r"no such module(.|\n)*nearest: fc"):
        inject_adapters(model, ["fcc"])
    with pytest.raises(UserError, match="there is no module to put it into"):
        inject_adapters(model, [])
    with pytest.raises(UserError, match="list is a list of modules"):
        inject_adapters(model, ["list"])
    with pytest.raises(UserError, match="act has no layer in it, so its width is unknown"):
        inject_adapters(model, ["act"])
    with pytest.raises(UserError, match=r"no attention and feed-forward(.|\n)*kind=pfeiffer"):
        inject_adapters(model, ["fc"], kind="houlsby")
    inject_adapters(model, ["fc"])
    with pytest.raises(UserError, match="fc already has something called adapter"):
        inject_adapters(model, ["fc"])


def test_input_that_is_no_tensor() -> None:
    model = nn.ModuleDict({"fc": nn.Linear(8, 8)})
    inject_adapters(model, ["fc"], kind="parallel")
    model["fc"].register_forward_pre_hook(lambda m, args: (torch.ones(2, 8),) if args else None)
    with pytest.raises(UserError, match="the input of fc is no tensor"):
        model["fc"]._forward_hooks[next(iter(model["fc"]._forward_hooks))](model["fc"], ([1],), {}, torch.ones(2, 8))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor
