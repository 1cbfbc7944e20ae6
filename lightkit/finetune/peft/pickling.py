"""Whole modules with parametrizations can be pickled, as can those without."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize


def make_picklable(module: nn.Module) -> None:
    """Let a module with parametrizations be pickled, which PyTorch refuses since its class is made on the spot.

    Args:
        module: The module; its class is its own, and gets a way to be made again.
    """
    type(module).__reduce_ex__ = _reduce  # type: ignore[assignment]


def _reduce(module: nn.Module, protocol: Any) -> tuple[Any, ...]:
    kind = parametrize.type_before_parametrizations(module)
    tensors = tuple(module.parametrizations)  # type: ignore[arg-type]
    return _made_again, (kind, tensors), module.__dict__


def _made_again(kind: type[nn.Module], tensors: tuple[str, ...]) -> nn.Module:
    """A module of the right class; unpickling then gives it its contents."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name in tensors:
        module.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
    make_picklable(module)
    return module
