"""Callbacks that write down what a run really does, and some that do what nobody should."""

from __future__ import annotations

import hashlib
from itertools import pairwise
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

    def on_fit_start(self, trainer: Any) -> None:
        Watch.seen.append(self)
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
        return [step for step, (before, after) in enumerate(pairwise(own)) if before != after]


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


class Mischief(Callback):
    """Does something that no fine-tuning should, as code of a user's own might.

    Args:
        what: Name of a function below.
        step: Number of steps after which it is done; 0 does it before the first.
        again: Do it after every later step too.
    """

    def __init__(self, what: str, step: int = 0, again: bool = False) -> None:
        self.do, self.step, self.again = MISCHIEF[what], step, again

    def on_fit_start(self, trainer: Any) -> None:
        if self.step == 0:
            self.do(trainer)

    def on_step(self, trainer: Any) -> None:
        now = trainer.state.step
        if now == self.step or (self.again and now > self.step):
            self.do(trainer)


def mischief(what: str, *, step: int = 0, again: bool = False) -> str:
    """The override that puts it into a run."""
    options = f"what: {what}, step: {step}, again: {str(again).lower()}"
    return f"++trainer.callbacks.mischief={{_target_: tests.finetune.spies.Mischief, {options}}}"


def train_mode(trainer: Any) -> None:
    trainer.model.train()


def stale_gradient(trainer: Any) -> None:
    weight = trainer.model.get_parameter("stages.0.conv0.weight")
    weight.grad = torch.ones_like(weight)


def rate_of_zero(trainer: Any) -> None:
    for group in trainer.optimizer.param_groups:
        if group["name"].startswith("head"):
            group["lr"] = 0.0


def double_rate(trainer: Any) -> None:
    trainer.optimizer.param_groups[0]["lr"] *= 2


def other_betas(trainer: Any) -> None:
    trainer.optimizer.param_groups[0]["betas"] = (0.5, 0.9)


def begin_late(trainer: Any) -> None:
    trainer.tuning.phase_at = lambda epoch, step: trainer.tuning.phases[step >= 5]


MISCHIEF: dict[str, Any] = {
    do.__name__: do for do in (train_mode, stale_gradient, rate_of_zero, double_rate, other_betas, begin_late)
}


class HoldsNorms(nn.Module):
    """A network that holds its norm layers in eval mode, as many for detection do."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(in_features, 8), nn.BatchNorm1d(8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(8, num_classes)

    def train(self, mode: bool = True) -> HoldsNorms:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Centred(nn.Module):
    """A layer that gathers statistics in its own way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("centre", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre = self.centre.lerp(x.detach().mean(0), 0.1)
        return (x - self.centre) * self.scale


class CentredAnyhow(Centred):
    """One that does so in every mode, and drops out something."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.centre.lerp_(x.mean(0), 0.1)
        return nn.functional.dropout((x - self.centre) * self.scale, 0.1, self.training)


class Stateful(nn.Module):
    """A network of layers that change more than parameters in training."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = nn.utils.spectral_norm(nn.Linear(in_features, 8))
        self.second = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.centred = Centred(8)
        self.head = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.centred(self.second(self.first(x))))


class Copies(torch.optim.SGD):
    """An optimizer over copies of the parameters, as one is that was built before they were replaced."""

    def __init__(self, params: Any, **options: Any) -> None:
        groups = [{**group, "params": [nn.Parameter(p.detach().clone()) for p in group["params"]]} for group in params]
        super().__init__(groups, **options)


class ExplodesOnce(nn.Module):
    """A loss that is NaN at one of the times it is computed for training.

    Args:
        at: Which, from 1.
    """

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.times = at, 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, target)
        self.times += torch.is_grad_enabled()
        return loss * torch.nan if torch.is_grad_enabled() and self.times == self.at else loss
