"""A small network and files of weights as others write them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class Net(nn.Module):
    """Linear, batch norm, linear; the last layer is `head`."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(OrderedDict(a=nn.Linear(4, 5), norm=nn.BatchNorm1d(5)))
        self.head = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


def net(seed: int = 0, classes: int = 3) -> Net:
    """A network with weights of its own."""
    torch.manual_seed(seed)
    made = Net(classes)
    with torch.no_grad():
        made.layers.norm.running_mean.normal_()
    return made


def same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks hold the same values."""
    here, there = one.state_dict(), other.state_dict()
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


class Nothing:
    """A part without a state."""

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


class Average(Nothing):
    """A moving average of all fractions: the weights plus one."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: t + 1 for name, t in model.state_dict().items() if t.is_floating_point()}

    def state_dict(self) -> dict:
        return {"steps": 7, "weights": self.weights}
