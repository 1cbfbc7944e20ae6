"""Layers of every kind with LoRA, as if it had learnt something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.finetune.peft.lora import inject_lora
from lightkit.finetune.peft.lowrank import LowRank
from lightkit.models import TransformerLM

IMPLS = ("parametrize", "wrap")


class Around(nn.Module):
    """A layer inside of a network, so that its name has a prefix."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.layer(*inputs)
        return found[0] if isinstance(found, tuple) else found


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(8, 2, batch_first=True, **options)


def numbers(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def three_times() -> tuple[Tensor, ...]:
    return (torch.randn(4, 5, 8),) * 3


def tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, 11, (4, 5)),)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "linear": (lambda: nn.Linear(6, 5), numbers((4, 6))),
    "linear of sequences, no bias": (lambda: nn.Linear(6, 5, bias=False), numbers((4, 3, 6))),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, padding_mode="circular"), numbers((4, 4, 9))),
    "conv1d of one sample": (lambda: nn.Conv1d(4, 6, 3), numbers((4, 9))),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False), numbers((4, 4, 7, 6))),
    "conv2d, groups": (
        lambda: nn.Conv2d(4, 6, (3, 1), groups=2, padding=1, padding_mode="reflect"), numbers((4, 4, 7, 5)),
    ),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, stride=(1, 2)), numbers((4, 4, 7, 6))),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, groups=2, padding=1, padding_mode="zeros"), numbers((3, 2, 4, 3, 3))),
    "embedding": (lambda: nn.Embedding(11, 6, padding_idx=2), tokens),
    "embedding without padding": (lambda: nn.Embedding(11, 6), tokens),
    "attention": (attention(), three_times),
    "attention, no bias": (attention(bias=False), three_times),
    "attention, extra keys": (attention(add_bias_kv=True), three_times),
    "attention, sizes": (attention(kdim=6, vdim=5), numbers((4, 5, 8), (4, 3, 6), (4, 3, 5))),
}  # fmt: skip


EVERY = [pytest.param(name, impl, id=f"{name}-{impl}") for name in LAYERS for impl in IMPLS]


def make(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    build, inputs = LAYERS[name]
    return Around(build()), inputs()


def tuned(model: nn.Module, impl: str, *, rank: int = 2, learnt: bool = True, **options: Any) -> list[str]:
    """LoRA on the layer, as if it had learnt something."""
    names = inject_lora(model, {"layer": rank}, alpha=3.0, impl=impl, **options)
    return learn(model, names) if learnt else names


def learn(model: nn.Module, names: list[str]) -> list[str]:
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in names:
            parameters[name].normal_(std=0.4)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:  # its row never learns
                for low in (found for found in module.modules() if isinstance(found, LowRank)):
                    low.lora_B[module.padding_idx] = 0
    return names


def language_model() -> tuple[TransformerLM, Tensor]:
    return TransformerLM(13, 8, dim=8, depth=1, heads=2), torch.randint(0, 13, (2, 8))


class Odd(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight - self.weight.mean(), self.bias)
