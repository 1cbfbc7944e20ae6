"""The way back from a tuned network to the plain one: names, merged weights, and merging in place."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from lightkit.common.errors import UserError
from lightkit.finetune.inserted.injected import injected_modules
from lightkit.finetune.inserted.lowrank import LowRank, LowRankPath, LowRankWeight


def plain_names(model: nn.Module) -> dict[str, str]:
    """Name in the tuned network's state → name in the plain one's, for all that the plain one has too.

    Args:
        model: The network, without wrappers, with or without anything injected.
    """
    injected = tuple(f"{path}." for path, _ in injected_modules(model))
    renamed: dict[str, str | None] = {}
    for path, tensor, _ in _parametrized(model):
        renamed[_join(path, f"parametrizations.{tensor}.original")] = _join(path, tensor)
    if (bridge := _bridge(model)) is not None:
        renamed |= bridge.renamed(model)
    found = {name: renamed.get(name, name) for name in model.state_dict() if not name.startswith(injected)}
    return {name: plain for name, plain in found.items() if plain is not None}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """State of the plain network that computes what the tuned one does in eval mode.

    Args:
        model: The network, without wrappers; not changed.

    Raises:
        UserError: Something in it is no part of the plain network and cannot be put into its weights.
    """
    stuck = [f"{path} ({module.label})" for path, module in injected_modules(model) if not module.mergeable]
    if stuck:
        raise UserError(
            "a network with these cannot be merged, as they are not part of the plain one",
            expected="LoRA",
            received=", ".join(stuck[:5]) + (f", … ({len(stuck)} in all)" if len(stuck) > 5 else ""),
            fix="keep the adapter file beside the base",
        )
    state = model.state_dict()
    merged = {plain: state[live] for live, plain in plain_names(model).items()}
    same: dict[int, Tensor] = {}
    with torch.no_grad():
        for name, weight, low in _adapted(model):
            if id(weight) not in same:
                same[id(weight)] = low.added_to(weight.detach())
            merged[name] = same[id(weight)]
    if (bridge := _bridge(model)) is not None:
        merged |= bridge.merged(model)
    return merged


class Merged:
    """Weights with LoRA put into them; leaving the context, or `undo`, brings back the exact bits of before."""

    def __init__(self, own: list[tuple[Tensor, Tensor]], lows: list[LowRank]) -> None:
        self._own, self._lows = own, lows

    def undo(self) -> None:
        """Take LoRA out of the weights; a second time does nothing."""
        with torch.no_grad():
            for weight, before in self._own:
                weight.copy_(before)
        for low in self._lows:
            low.merged = False
        self._own, self._lows = [], []

    def __enter__(self) -> Merged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def merge(model: nn.Module) -> Merged:
    """Put LoRA into the weights of a network, which then is as fast as the plain one.

    It is for inference: don't train or save the network before `undo`, as its weights and its matrices then both hold
    what was learnt. `merged_state` gives the state to save.

    Args:
        model: The network, without wrappers; changed in place. It takes a copy of the adapted weights to undo this.

    Raises:
        UserError: There is no LoRA in it, or it is merged already.
    """
    adapted = {id(weight): (weight, low) for _, weight, low in _adapted(model)}
    lows = [low for _, _, low in _adapted(model)]
    if not lows:
        raise UserError("there is no LoRA to merge", received=type(model).__name__)
    if any(low.merged for low in lows):
        raise UserError("the network is merged already", fix="undo that first")
    own = [(weight, weight.detach().clone()) for weight, _ in adapted.values()]
    with torch.no_grad():
        for weight, low in adapted.values():
            weight.copy_(low.added_to(weight))
    for low in lows:
        low.merged = True
    return Merged(own, lows)


def _parametrized(model: nn.Module) -> Iterator[tuple[str, str, ParametrizationList]]:
    """Path of the layer, name of its tensor, and what changes it, for all that LoRA changes where it stands."""
    for path, module in model.named_modules(remove_duplicate=False):
        if parametrize.is_parametrized(module):
            every: dict[str, Any] = dict(module.parametrizations.items())
            yield from ((path, tensor, each) for tensor, each in every.items() if isinstance(each[0], LowRankWeight))


def _adapted(model: nn.Module) -> Iterator[tuple[str, Tensor, LowRank]]:
    """Plain name, weight and matrices of all that LoRA adapts; a shared layer comes under each of its names."""
    for path, tensor, changes in _parametrized(model):
        yield _join(path, tensor), changes.original, cast(LowRank, changes[0])
    for path, module in model.named_modules(remove_duplicate=False):
        low = module._modules.get("lora")
        if isinstance(low, LowRankPath):
            yield _join(path, "weight"), cast(Tensor, module.weight), low


def _bridge(model: nn.Module) -> ModuleType | None:
    """What knows the layers of peft, if there are any."""
    if not any(type(module).__module__.startswith("peft.") for module in model.modules()):
        return None
    from lightkit.finetune.inserted import peft_bridge

    return peft_bridge


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
