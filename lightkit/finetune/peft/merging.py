"""The way back from a network with injected modules to the plain one: names, merged weights, and merging in place."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from lightkit.common.errors import UserError
from lightkit.common.modules import put_back
from lightkit.finetune.peft.injected import injected_modules, join_names
from lightkit.finetune.peft.lowrank import (
    LowRank,
    LowRankPath,
    LowRankWeight,
    describe_sources,
    effective_weight,
    solve_for_weight,
)

_LORA = "LoRA after"


def plain_names(model: nn.Module) -> dict[str, str]:
    """Return the name in the plain network's state of every tensor that the plain network has too.

    Args:
        model: The network, without wrappers, with or without anything injected.

    Returns:
        Name in the state of `model` → name in the plain network's.
    """
    injected = tuple(f"{path}." for path, _ in injected_modules(model))
    renamed: dict[str, str | None] = {}
    for path, _, tensor, changes in _parametrized(model):
        if isinstance(changes[0], LowRankWeight):
            renamed[join_names(path, f"parametrizations.{tensor}.original")] = join_names(path, tensor)
    if (bridge := _peft_bridge(model)) is not None:
        renamed |= bridge.plain_names(model)
    names = {name: renamed.get(name, name) for name in model.state_dict() if not name.startswith(injected)}
    return {name: plain for name, plain in names.items() if plain is not None}


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of the plain network that computes what this network does in eval mode.

    Args:
        model: The network, without wrappers; not changed.

    Raises:
        UserError: Something in it is no part of the plain network and cannot be put into its weights.
    """
    _refuse(unmergeable(model))
    state = model.state_dict()
    names = plain_names(model)
    merged = {plain: state[name] for name, plain in names.items()}
    merged |= {names[name]: value for name, _, value in _merged_tensors(model)}
    if (bridge := _peft_bridge(model)) is not None:
        merged |= bridge.merged(model)
    return merged


def unmergeable(model: nn.Module) -> list[str]:
    """List what cannot be put into the weights of the plain network, in words: `blocks.0.adapter (adapter)`."""
    texts = [f"{path} ({module.label})" for path, module in injected_modules(model) if not module.mergeable]
    for path, layer, tensor, lora in _adapted_layers(model):
        sources = describe_sources(layer, tensor)
        if sources and solve_for_weight(layer, tensor, _adapted_weight(layer, tensor, lora)) is None:
            texts.append(f"{join_names(path, tensor)} ({_LORA} {sources}, which makes no such weights)")
    return texts


class Merged:
    """Weights with LoRA put into them; leaving the context, or `undo`, brings back the exact bits of before."""

    def __init__(self, originals: list[tuple[Tensor, Tensor]], loras: list[LowRank]) -> None:
        self._originals, self._loras = originals, loras

    def undo(self) -> None:
        """Take LoRA out of the weights; a second time does nothing."""
        put_back(self._originals)
        for lora in self._loras:
            lora.merged = False
        self._originals, self._loras = [], []

    def __enter__(self) -> Merged:
        return self

    def __exit__(self, *_: object) -> None:
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
    loras = [lora for _, _, _, lora in _adapted_layers(model)]
    if not loras:
        raise UserError("there is no LoRA to merge", received=type(model).__name__, family="finetuning")
    if any(lora.merged for lora in loras):
        raise UserError("the network is merged already", fix="undo that first", family="finetuning")
    _refuse([text for text in unmergeable(model) if _LORA in text])
    values = {id(tensor): (tensor, value) for _, tensor, value in _merged_tensors(model)}
    originals = [(tensor, tensor.detach().clone()) for tensor, _ in values.values()]
    put_back(values.values())
    for lora in loras:
        lora.merged = True
    return Merged(originals, loras)


def _refuse(texts: list[str]) -> None:
    """Raise an error if there is anything that cannot be merged."""
    if texts:
        raise UserError(
            "a network with these cannot be merged, as they are not part of the plain one",
            expected="LoRA" if not any(_LORA in text for text in texts) else "LoRA on weights that can take any value",
            received=", ".join(texts[:5]) + (f", … ({len(texts)} in all)" if len(texts) > 5 else ""),
            fix="keep the adapter file beside the base",
            family="finetuning",
        )


def _parametrized(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, ParametrizationList]]:
    """Yield path, layer, its name of a tensor, and what makes that, for all parametrizations."""
    for path, module in model.named_modules(remove_duplicate=False):
        if parametrize.is_parametrized(module):
            every: dict[str, Any] = dict(module.parametrizations.items())
            yield from ((path, module, tensor, each) for tensor, each in every.items())


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, LowRank]]:
    """Yield path, layer, its name of the weight, and matrices of all that LoRA adapts.

    A shared layer comes under each of its names.
    """
    for path, module, tensor, changes in _parametrized(model):
        yield from ((path, module, tensor, lora) for lora in changes if isinstance(lora, LowRankWeight))
    for path, module in model.named_modules(remove_duplicate=False):
        lora = module._modules.get("lora")
        if isinstance(lora, LowRankPath):
            yield path, module, "weight", lora


def _merged_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield name, tensor and new value of all that takes LoRA in; one value for a tensor with several names."""
    by_tensor: dict[int, Tensor] = {}
    for path, layer, tensor, lora in _adapted_layers(model):
        values = solve_for_weight(layer, tensor, _adapted_weight(layer, tensor, lora)) or {}
        for name, (own, value) in values.items():
            yield join_names(path, name), own, by_tensor.setdefault(id(own), value)


def _adapted_weight(layer: nn.Module, tensor: str, lora: LowRank) -> Tensor:
    """Return the weight that an adapted layer computes with in eval mode."""
    weight = effective_weight(layer, tensor).detach()
    with torch.no_grad():
        return lora.added_to(weight) if isinstance(lora, LowRankPath) else weight


def _peft_bridge(model: nn.Module) -> ModuleType | None:
    """Return the module that knows the layers of peft, if there are any."""
    if not any(type(module).__module__.startswith("peft.") for module in model.modules()):
        return None
    from lightkit.finetune.peft import peft_bridge

    return peft_bridge
