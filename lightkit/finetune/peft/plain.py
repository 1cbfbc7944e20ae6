"""The way back from a tuned network to the plain one: names, merged weights, and merging in place."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from lightkit.common.errors import UserError
from lightkit.finetune.peft.injected import injected_modules
from lightkit.finetune.peft.lowrank import LowRank, LowRankPath, LowRankWeight
from lightkit.finetune.peft.normed import fold, makers, weight_of

_LOW = "LoRA after"


def plain_names(model: nn.Module) -> dict[str, str]:
    """Name in the tuned network's state → name in the plain one's, for all that the plain one has too.

    Args:
        model: The network, without wrappers, with or without anything injected.
    """
    injected = tuple(f"{path}." for path, _ in injected_modules(model))
    renamed: dict[str, str | None] = {}
    for path, _, tensor, changes in _parametrized(model):
        if isinstance(changes[0], LowRankWeight):
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
    _refuse(stuck(model))
    state = model.state_dict()
    names = plain_names(model)
    merged = {plain: state[live] for live, plain in names.items()}
    merged |= {names[live]: value for live, _, value in _folded(model)}
    if (bridge := _bridge(model)) is not None:
        merged |= bridge.merged(model)
    return merged


def stuck(model: nn.Module) -> list[str]:
    """What cannot be put into the weights of the plain network, in words: `blocks.0.adapter (adapter)`."""
    found = [f"{path} ({module.label})" for path, module in injected_modules(model) if not module.mergeable]
    for path, host, tensor, low in _adapted(model):
        made_by = makers(host, tensor)
        if made_by and fold(host, tensor, _changed(host, tensor, low)) is None:
            found.append(f"{_join(path, tensor)} ({_LOW} {made_by}, which makes no such weights)")
    return found


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
        UserError: There is no LoRA in it, it is merged already, or a weight cannot take it in.
    """
    lows = [low for _, _, _, low in _adapted(model)]
    if not lows:
        raise UserError("there is no LoRA to merge", received=type(model).__name__)
    if any(low.merged for low in lows):
        raise UserError("the network is merged already", fix="undo that first")
    _refuse([text for text in stuck(model) if _LOW in text])
    values = {id(tensor): (tensor, value) for _, tensor, value in _folded(model)}
    own = [(tensor, tensor.detach().clone()) for tensor, _ in values.values()]
    with torch.no_grad():
        for tensor, value in values.values():
            tensor.copy_(value)
    for low in lows:
        low.merged = True
    return Merged(own, lows)


def _refuse(found: list[str]) -> None:
    """Raise if there is anything that cannot be merged."""
    if found:
        raise UserError(
            "a network with these cannot be merged, as they are not part of the plain one",
            expected="LoRA" if not any(_LOW in text for text in found) else "LoRA on weights that can take any value",
            received=", ".join(found[:5]) + (f", … ({len(found)} in all)" if len(found) > 5 else ""),
            fix="keep the adapter file beside the base",
        )


def _parametrized(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, ParametrizationList]]:
    """Path, layer, its name of a tensor, and what makes that, for all parametrizations."""
    for path, module in model.named_modules(remove_duplicate=False):
        if parametrize.is_parametrized(module):
            every: dict[str, Any] = dict(module.parametrizations.items())
            yield from ((path, module, tensor, each) for tensor, each in every.items())


def _adapted(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, LowRank]]:
    """Path, layer, its name of the weight, and matrices of all that LoRA adapts; a shared layer under each name."""
    for path, module, tensor, changes in _parametrized(model):
        yield from ((path, module, tensor, low) for low in changes if isinstance(low, LowRankWeight))
    for path, module in model.named_modules(remove_duplicate=False):
        low = module._modules.get("lora")
        if isinstance(low, LowRankPath):
            yield path, module, "weight", low


def _folded(model: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, tensor and new value of all that takes LoRA in; one value for a tensor with several names."""
    same: dict[int, Tensor] = {}
    for path, host, tensor, low in _adapted(model):
        for name, (own, value) in (fold(host, tensor, _changed(host, tensor, low)) or {}).items():
            yield _join(path, name), own, same.setdefault(id(own), value)


def _changed(host: nn.Module, tensor: str, low: LowRank) -> Tensor:
    """The weight that an adapted layer computes with in eval mode."""
    weight = weight_of(host, tensor).detach()
    with torch.no_grad():
        return low.added_to(weight) if isinstance(low, LowRankPath) else weight


def _bridge(model: nn.Module) -> ModuleType | None:
    """What knows the layers of peft, if there are any."""
    if not any(type(module).__module__.startswith("peft.") for module in model.modules()):
        return None
    from lightkit.finetune.peft import peft_bridge

    return peft_bridge


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
