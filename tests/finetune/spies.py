"""Callbacks that write down what a run really does, and some that do what nobody should."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.trainer import Callback


class Taken(NamedTuple):
    """An optimizer step, seen from within it."""

    step: int
    epoch: int
    rates: dict[str, float]
    """By the name of the group."""
    decays: dict[str, float]
    groups: dict[str, list[str]]
    """Names of the parameters in each group."""
    gradients: set[str]
    """Names of the parameters that have one."""
    trainable: set[str]
    norms: dict[str, bool]
    """Whether each norm layer with statistics is in training mode."""
    dropouts: dict[str, bool]


class Watch(Callback):
    """Looks at the live objects in every optimizer step; tests find what it saw in `Watch.seen`.

    Args:
        prints: Also take a print of every tensor after each step.
    """

    seen: ClassVar[list[Watch]] = []

    def __init__(self, prints: bool = False) -> None:
        self.wants_prints = prints
        self.start: dict[str, Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.taken: list[Taken] = []
        self.prints: list[dict[str, bytes]] = []
        Watch.seen.append(self)

    def on_fit_start(self, trainer: Any) -> None:
        self.start = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
        self.kinds = kinds(trainer.model)

        def look(optimizer: Optimizer, *_: Any) -> None:
            self.taken.append(seen(trainer, optimizer))

        trainer.optimizer.register_step_pre_hook(look)
        self._print(trainer.model)

    def on_step(self, trainer: Any) -> None:
        self._print(trainer.model)

    def _print(self, model: nn.Module) -> None:
        if self.wants_prints:
            self.prints.append({name: _digest(tensor) for name, tensor in model.state_dict().items()})

    def moved(self, name: str) -> list[int]:
        """Steps, counted from 0, that changed a tensor."""
        own = [prints[name] for prints in self.prints]
        return [step for step, (before, after) in enumerate(zip(own, own[1:])) if before != after]


def watching(*, prints: bool = False) -> str:
    """The override that puts a `Watch` into a run."""
    return f"++trainer.callbacks.watch={{_target_: tests.finetune.spies.Watch, prints: {str(prints).lower()}}}"


def kinds(model: nn.Module) -> dict[str, str]:
    """What each parameter and buffer is, told by PyTorch alone: `norm`, `bias`, `weight` or `buffer`."""
    found = {}
    for path, module in model.named_modules():
        is_norm = isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm))
        for name, _ in module.named_parameters(recurse=False):
            found[_join(path, name)] = "norm" if is_norm else "bias" if name.endswith("bias") else "weight"
        found |= {_join(path, name): "buffer" for name, _ in module.named_buffers(recurse=False)}
    return found


def seen(trainer: Any, optimizer: Optimizer) -> Taken:
    model = trainer.model
    own = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    return Taken(
        trainer.state.step,
        trainer.state.epoch,
        {group["name"]: float(group["lr"]) for group in groups},
        {group["name"]: float(group["weight_decay"]) for group in groups},
        {group["name"]: [own[id(parameter)] for parameter in group["params"]] for group in groups},
        {name for name, parameter in model.named_parameters() if parameter.grad is not None},
        {name for name, parameter in model.named_parameters() if parameter.requires_grad},
        {path: module.training for path, module in model.named_modules() if hasattr(module, "running_mean")},
        {path: module.training for path, module in model.named_modules() if isinstance(module, nn.Dropout)},
    )


def _digest(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes(), digest_size=8).digest()


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")
