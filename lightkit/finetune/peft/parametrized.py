"""Weights that a layer makes of other tensors: weight norm, spectral norm and other parametrizations.

Those of `torch.nn.utils.parametrizations` are part of the layer, and a low-rank change can be put after them:
`g · v / ‖v‖ + B A`. The older `torch.nn.utils.weight_norm` and `spectral_norm` make the weight anew in a hook before
each pass, so that only a path beside the layer lasts. What is added to a weight can go into the tensors it is made of
where these can make any weight, as those of weight norm can.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.weight_norm import WeightNorm

from lightkit.finetune.peft.lowrank import LowRank

_ROUNDING = 100
"""How many units in the last place a weight may differ from the one that was to be made."""


def parametrizations(layer: nn.Module, tensor: str) -> ParametrizationList | None:
    """Return what makes a tensor of a layer in the layer itself; None where nothing does."""
    if not parametrize.is_parametrized(layer, tensor):
        return None
    return layer.parametrizations[tensor]  # type: ignore[index,return-value]


def effective_weight(layer: nn.Module, tensor: str) -> Tensor:
    """Return the weight a layer computes with in eval mode; asking changes nothing, as a training pass might.

    Args:
        layer: The layer.
        tensor: What it calls the weight.

    Returns:
        The parameter itself where the weight is one.
    """
    if tensor in layer._parameters:
        return layer._parameters[tensor]  # type: ignore[return-value]
    changes, hook = parametrizations(layer, tensor), _weight_norm(layer, tensor)
    if hook is not None:
        with torch.no_grad():
            return hook.compute_weight(layer)
    if changes is None:
        return getattr(layer, tensor)
    modes = {module: module.training for module in changes.modules()}
    try:
        with torch.no_grad():
            return changes.eval()()
    finally:
        for module, training in modes.items():
            module.training = training


def source_parameters(layer: nn.Module, tensor: str) -> list[nn.Parameter]:
    """Return the parameters that a weight is made of; none where it is a parameter itself."""
    if tensor in layer._parameters:
        return []
    changes = parametrizations(layer, tensor)
    if changes is not None:
        return list(changes.parameters(recurse=False))
    return [own for name, own in layer.named_parameters(recurse=False) if name.startswith(f"{tensor}_")]


def describe_sources(layer: nn.Module, tensor: str) -> str:
    """Name what besides LoRA makes a weight: `_SpectralNorm`; empty where the weight is a parameter."""
    changes = parametrizations(layer, tensor)
    if tensor in layer._parameters:
        return ""
    hooks = [hook for hook in layer._forward_pre_hooks.values() if getattr(hook, "name", None) == tensor]
    kinds = [type(part).__name__ for part in (hooks if changes is None else changes) if not isinstance(part, LowRank)]
    return " and ".join(kinds) or ("a hook" if changes is None else "")


def solve_for_weight(layer: nn.Module, tensor: str, weight: Tensor) -> dict[str, tuple[Tensor, Tensor]] | None:
    """Compute the values of the tensors that a weight is made of which make a given weight.

    Args:
        layer: The layer; not changed.
        tensor: What it calls the weight.
        weight: The weight it is to make without low-rank matrices.

    Returns:
        Name of each of these tensors below the layer → itself and the new value; None where they cannot make it.
    """
    if tensor in layer._parameters:
        return {tensor: (effective_weight(layer, tensor), weight)}
    values: Sequence[Tensor] | None
    changes, hook = parametrizations(layer, tensor), _weight_norm(layer, tensor)
    if changes is not None:
        names = ["original"] if changes.is_tensor else [f"original{index}" for index in range(changes.ntensors)]
        values = _invert([part for part in changes if not isinstance(part, LowRank)], weight)
        own = {f"parametrizations.{tensor}.{name}": getattr(changes, name) for name in names}
    elif hook is not None:
        values = (torch.norm_except_dim(weight, 2, hook.dim), weight)
        own = {name: layer._parameters[name] for name in (f"{tensor}_g", f"{tensor}_v")}
    else:
        return None
    if values is None:
        return None
    return {name: (old, value.to(old.dtype)) for (name, old), value in zip(own.items(), values)}


def _weight_norm(layer: nn.Module, tensor: str) -> WeightNorm | None:
    """Return the hook of the older weight norm that makes this tensor."""
    hooks = layer._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, WeightNorm) and hook.name == tensor), None)


def _invert(parts: Sequence[nn.Module], weight: Tensor) -> Sequence[Tensor] | None:
    """Compute what goes into parametrizations for a weight to come out; None where it does not come out."""
    if not parts:
        return (weight,)
    precise = torch.promote_types(weight.dtype, torch.float32)
    steps = [copy.deepcopy(part).eval().to(precise) for part in parts]
    value, wanted = weight.to(precise), weight.to(precise)
    try:
        for step in reversed(steps):
            value = step.right_inverse(value) if hasattr(step, "right_inverse") else value  # type: ignore[operator]
        values = (value,) if isinstance(value, Tensor) else tuple(value)
        made = steps[0](*values)
        for step in steps[1:]:
            made = step(made)
    except (NotImplementedError, RuntimeError, ValueError):  # what they say of weights they cannot make
        return None
    allowed = _ROUNDING * torch.finfo(precise).eps * float(wanted.abs().max())
    return values if torch.allclose(made, wanted, rtol=0, atol=allowed) else None
