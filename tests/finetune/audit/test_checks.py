"""Whether network and optimizer are in the state that a phase asks for, and stay so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import SGD, AdamW

from lightkit.common.errors import UserError
from lightkit.finetune.phases import Phase
from lightkit.trainer.audit.rules import group_options, option_faults, rate_faults
from tests.finetune.audit.running import (
    Run,
    grouped,
    names,
    network,
    phases,
)


def test_options_that_change_are_told() -> None:
    optimizer = AdamW([{"params": [nn.Parameter(torch.ones(1))], "name": "head"}], betas=(0.9, 0.99))
    before = group_options(optimizer.param_groups)
    assert before["head"]["betas"] == (0.9, 0.99)
    assert option_faults(before, optimizer.param_groups) == []
    optimizer.param_groups[0].update(betas=[0.9, 0.99], lr=3.0, own_counter=7)
    assert option_faults(before, optimizer.param_groups) == []
    optimizer.param_groups[0].update(betas=(0.5, 0.99), weight_decay=0.5)
    assert option_faults(before, optimizer.param_groups) == [
        "group head: weight decay 0.5, 0.01 when the phase began",
        "group head: betas (0.5, 0.99), (0.9, 0.99) when the phase began",
    ]


def test_options_may_be_left_out() -> None:
    groups = SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9).param_groups
    assert "momentum" not in group_options(groups, without={"momentum"})["group 0"]
    assert group_options(groups, without=None) == {}


def test_options_in_tensors_are_copied() -> None:
    group = {"params": [], "betas": (torch.tensor(0.5), torch.tensor(0.75))}
    before = group_options([group])
    group["betas"][0].fill_(0.25)
    assert before["group 0"]["betas"] == (0.5, 0.75)
    assert len(option_faults(before, [group])) == 1


def test_rates_that_no_schedule_set_are_told() -> None:
    groups = [{"params": [], "lr": 0.1, "name": "body"}, {"params": [], "lr": torch.tensor(0.2)}]
    assert rate_faults([0.1, 0.2], groups) == []
    assert rate_faults(None, groups) == []
    assert rate_faults([0.1, 0.4], groups) == ["group group 1: learning rate 0.2, the schedule has set 0.4"]


def test_gradient_of_before_that_still_moves_what_is_frozen() -> None:
    model = network()
    run = Run(model, grouped(model, momentum=0.9), phases(model))

    def forgotten(step: int) -> None:
        if step == 14:  # freezes what has a gradient, and leaves it there
            run.audit.end(step)
            phase = run.tuning.phases[2]
            for name, parameter in model.named_parameters():
                parameter.grad = torch.ones_like(parameter)
                parameter.requires_grad_(name in phase.trainable)
            model[1].training = model[4].training = False
            run.audit.begin(phase, epoch=3, step=14)

    with pytest.raises(UserError, match="frozen but still has a gradient of before.*0.weight, 0.bias, 1.weight"):
        run.go(before=forgotten)


def test_stale_gradient_that_comes_after_the_beginning() -> None:
    model = network()
    run = Run(model, grouped(model, weight_decay=0.1), phases(model))

    def plant(step: int) -> None:
        model[0].weight.grad = torch.zeros_like(model[0].weight)  # weight decay alone moves it

    with pytest.raises(UserError, match=r"after step 2\)\n.*body: should rest but moved: 0.weight\n"):
        run.go(after_entering=plant)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.scale


def test_optimizer_built_before_something_was_put_in() -> None:
    model = network()
    optimizer = grouped(model)
    parametrize.register_parametrization(model[3], "weight", Scaled())
    model[5] = nn.Linear(8, 4)
    with pytest.raises(UserError) as caught:
        Run(model, optimizer, [Phase(frozenset(dict(model.named_parameters())), epoch=0)]).go(4)
    text = str(caught.value)
    assert "trains but is not in the optimizer (was the optimizer built before the network was changed?): " in text
    assert "3.parametrizations.weight.0.scale, 5.weight, 5.bias" in text
    assert "in the optimizer but not in the network (was the optimizer built before" in text
    assert "): 5.weight, 5.bias" in text


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(6, 3), nn.Linear(6, 3)
        self.out.weight = self.inside.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) + self.out(x)


def test_tied_weights_frozen_and_trained_at_once() -> None:
    model = Tied()
    wrong = Phase(frozenset({"out.weight", "out.bias"}), epoch=0)
    with pytest.raises(UserError, match="one tensor is to train as out.weight and to rest as inside.weight"):
        Run(model, SGD(model.parameters(), lr=0.1), [wrong]).go(4)
    for every in ({"inside.weight", "out.bias"}, {"inside.weight", "out.weight", "out.bias"}):
        Run(model, SGD(model.parameters(), lr=0.1), [Phase(frozenset(every), epoch=0)]).go(4)


def test_two_parameters_in_the_same_memory() -> None:
    model = Tied()
    model.out.weight = nn.Parameter(model.inside.weight.data)
    wrong = Phase(frozenset({"out.weight", "out.bias"}), epoch=0)
    with pytest.raises(UserError, match="out.weight trains and inside.weight rests, but they are the same memory"):
        Run(model, SGD(model.parameters(), lr=0.1), [wrong]).go(4)


def test_parameter_that_the_network_has_not() -> None:
    model = network()
    with pytest.raises(UserError, match="should train but is not in the network: gone"):
        Run(model, grouped(model), [Phase(names(model) | {"gone"}, epoch=0)]).go(2)


def test_parameter_twice_in_the_optimizer() -> None:
    model = network()
    optimizer = grouped(model)
    optimizer.param_groups[0]["params"].append(model[5].bias)
    with pytest.raises(UserError, match="in the optimizer more than once: 5.bias"):
        Run(model, optimizer, [Phase(names(model), epoch=0)]).go(2)
