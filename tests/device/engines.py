"""Engines as the assembly makes them, the process first; and a model after its backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lightkit.device import Engine, configure_process

_OF_THE_PROCESS = ("gpus", "threads")
_SHARED = ("precision", "switches", "ranks", "deterministic", "seed")


def configured(name: str = "cpu", **options: Any) -> Engine:
    """Configure the process, and make an engine for it."""
    shared = {key: value for key, value in options.items() if key in _SHARED}
    own = {key: options.pop(key) for key in _OF_THE_PROCESS if key in options}
    return Engine(configure_process(name, **own, **shared), **options)


def parts(scale: float = 1.0) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.randn(16, 4)).square().mean() * scale).backward()
    return model, optimizer


def gradients(optimizer: Optimizer) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]])
