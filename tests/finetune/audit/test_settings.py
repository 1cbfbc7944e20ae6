"""Whether the groups of an optimizer are set to what they were."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, AdamW

from lightkit.finetune.audit.checks import group_options, option_faults, rate_faults


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
