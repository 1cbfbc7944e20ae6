"""Inputs and outputs of modules that hooks read and replace."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.finetune.peft.adapter import inject_adapters
from tests.finetune.peft import injecting as on


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def test_first_of_several_outputs() -> None:
    layer, x = nn.LSTM(4, 3, bidirectional=True, batch_first=True), torch.randn(2, 5, 4)
    plain, (hidden, _) = layer(x)
    on.adapted(layer)
    found, (same, _) = layer(x)
    assert torch.equal(same, hidden)
    torch.testing.assert_close(found, plain + on.bottleneck(layer.adapter, plain))  # type: ignore[arg-type]


def test_named_tuples_stay_what_they_are() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            return Pair(self.fc(x), x)

    block, x = Block(), torch.randn(2, 4)
    plain = block(x)
    on.adapted(block)
    found = block(x)
    assert type(found) is Pair
    assert not torch.equal(found.first, plain.first)
    assert torch.equal(found.second, x)


def test_input_that_is_no_tensor() -> None:
    model = nn.ModuleDict({"fc": nn.Linear(8, 8)})
    inject_adapters(model, ["fc"], kind="parallel")
    model["fc"].register_forward_pre_hook(lambda m, args: (torch.ones(2, 8),) if args else None)
    with pytest.raises(UserError, match="the input of fc is no tensor"):
        model["fc"]._forward_hooks[next(iter(model["fc"]._forward_hooks))](model["fc"], ([1],), {}, torch.ones(2, 8))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor
