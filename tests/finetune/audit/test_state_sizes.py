from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from lightkit.finetune.tables import state_sizes


def held(optimizer: Optimizer, model: nn.Module) -> dict[str, int]:
    """What an optimizer really keeps after a step."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {
        name: sum(v.numel() * v.element_size() for v in optimizer.state[p].values() if isinstance(v, torch.Tensor))
        for name, p in model.named_parameters()
    }


def network(kind: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(40, 30)).to(kind)


OPTIMIZERS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {"amsgrad": True, "foreach": True}),
    (torch.optim.Adam, {"lr": torch.tensor(0.1), "foreach": False}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.1}),
    (torch.optim.Adafactor, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.NAdam, {}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("number", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_what_is_measured_is_what_is_kept(kind: type[Optimizer], options: dict[str, Any], number: torch.dtype) -> None:
    model = network(number)
    optimizer = kind(model.parameters(), **{"lr": 0.1} | options)
    before = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    filled = len(optimizer.state)
    measured = state_sizes(optimizer, dict(model.named_parameters()))
    assert len(optimizer.state) == filled
    assert {name: value for name, value in optimizer.param_groups[0].items() if name != "params"} == before
    assert measured == held(optimizer, model)
    assert state_sizes(optimizer, dict(model.named_parameters())) == measured


def test_each_group_by_its_own_settings() -> None:
    model = network()
    groups = [{"params": [model[0].weight], "momentum": 0.9}, {"params": [model[2].weight]}]
    parameters = {"conv": model[0].weight, "linear": model[2].weight}
    assert state_sizes(torch.optim.SGD(groups, lr=0.1), parameters) == {
        "conv": 4 * model[0].weight.numel(),
        "linear": 0,
    }


def test_hooks_and_patches_are_left_alone() -> None:
    model = network()
    optimizer, seen = torch.optim.AdamW(model.parameters()), []
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_step_post_hook(lambda *args: seen.append(1))
    assert state_sizes(optimizer, dict(model.named_parameters()))
    assert not seen
    assert not optimizer.state


def test_optimizers_that_cannot_be_measured() -> None:
    model = network()
    assert state_sizes(torch.optim.LBFGS(model.parameters()), dict(model.named_parameters())) is None


def test_the_given_way_to_step_is_taken() -> None:
    model, asked = network(), []

    def step(optimizer: Optimizer) -> None:
        asked.append(optimizer)
        optimizer.step()

    optimizer = torch.optim.AdamW(model.parameters())
    state_sizes(optimizer, dict(model.named_parameters()), step=step)
    assert len(asked) == 3
    assert optimizer not in asked
