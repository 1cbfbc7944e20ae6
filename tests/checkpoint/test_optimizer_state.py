from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightkit.checkpoint import optimizer_state


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    model.turned = nn.Parameter(torch.rand(5, 3).t())
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.manual_seed(1)
    (model(torch.rand(2, 3, 6, 6)).square().mean() + (model.turned**2).sum()).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("kind", "before", "now"),
    [
        (torch.optim.AdamW, "fused", "fused"),
        (torch.optim.AdamW, "loop", "fused"),
        (torch.optim.SGD, "fused", "loop"),
        (torch.optim.Adagrad, "fused", "loop"),
    ],
)
def test_state_goes_on_with_another_implementation_and_other_layouts(kind, before, now):
    options = {"lr": 0.1} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    switches = {"fused": {"fused": True}, "loop": {"foreach": False}}
    model, other = network(), network()
    first = kind(model.parameters(), **options, **switches[before])
    step(model, first)
    saved = copy.deepcopy(optimizer_state.by_name(first, model))
    for values in saved["state"].values():  # as a file has them
        values |= {name: value.contiguous() for name, value in values.items() if isinstance(value, torch.Tensor)}
    other.load_state_dict({name: value.contiguous() for name, value in model.state_dict().items()})
    second = kind(other.parameters(), **options, **switches[now])
    second.load_state_dict(optimizer_state.from_names(saved, second, other))
    assert bool(second.param_groups[0]["fused"]) == (now == "fused"), "how it steps is not the checkpoint's to say"
    assert second.param_groups[0]["foreach"] is (False if now == "loop" else None)
    for parameter, values in second.state.items():
        layouts = [value.stride() for value in values.values() if getattr(value, "shape", None) == parameter.shape]
        assert layouts == [parameter.stride()] * len(layouts)
        assert layouts
    step(model, first)
    step(other, second)
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right)
        assert before != now or torch.equal(left, right)
