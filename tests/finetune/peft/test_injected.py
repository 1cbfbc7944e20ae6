"""What is put into a network becomes part of the module that a hook changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.adapter import inject_adapters
from lightkit.finetune.peft.blocks import find_blocks
from tests.finetune.peft import injecting as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


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
