"""How much memory an optimizer will need for its state, measured before it has any."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Lengths of the dimensions of a stand-in: each tells its dimension where a state holds a row or a column only.
_LENGTHS = (2, 3, 5, 7, 11, 13, 17, 19)
_PLAIN = {"foreach": False, "fused": False, "capturable": False}
Shape = tuple[tuple[int, ...], int]


def state_sizes(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], *, step: Callable[[Optimizer], Any] = methodcaller("step")
) -> dict[str, int] | None:
    """Measure how many bytes of state an optimizer keeps for each parameter once it trains.

    Where it has none yet, a tiny parameter with as many dimensions takes one step in a copy of the optimizer.

    Args:
        optimizer: Nothing of it changes.
        parameters: Parameters in its groups, by name.
        step: Lets an optimizer take a step.

    Returns:
        Bytes by name; None where the optimizer cannot be measured in this way.
    """
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    known: dict[tuple[Any, ...], list[Shape]] = {}
    sizes = {}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter)
        if state:
            sizes[name] = sum(value.numel() * value.element_size() for value in _tensors(state))
            continue
        group = groups[id(parameter)]
        key = (id(group), parameter.ndim, parameter.dtype)
        try:
            shapes = known[key] if key in known else _measure(optimizer, group, parameter, step)
        except Exception:  # an optimizer of anybody's, which may need what a stand-in has not
            return None
        known[key] = shapes
        sizes[name] = sum(
            size * math.prod(parameter.shape[dim] if dim >= 0 else -dim for dim in shape) for shape, size in shapes
        )
    return sizes


def _measure(
    optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor, step: Callable[[Optimizer], Any]
) -> list[Shape]:
    """Return shape and bytes per element of everything that an optimizer keeps for a stand-in.

    A shape holds the dimensions of the parameter by their place; a negative number is a length itself.
    """
    stand_in = nn.Parameter(torch.ones(_LENGTHS[: parameter.ndim], dtype=parameter.dtype))
    stand_in.grad = torch.ones_like(stand_in)
    optimizer_copy = object.__new__(type(optimizer))
    # Not by its constructor, whose arguments only its author knows; without hooks and patches, meant for real steps.
    optimizer_copy.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    optimizer_copy.__dict__.update({key: OrderedDict() for key in vars(optimizer) if key.endswith("_hooks")})
    plain = {key: value for key, value in _PLAIN.items() if key in group}
    optimizer_copy.state = defaultdict(dict)
    optimizer_copy.param_groups = [{**group, **plain, "lr": float(group.get("lr", 0.1)), "params": [stand_in]}]
    step(optimizer_copy)
    return [
        (tuple(_LENGTHS.index(n) if n in _LENGTHS else -n for n in value.shape), value.element_size())
        for value in _tensors(optimizer_copy.state[stand_in])
    ]


def _tensors(state: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]
