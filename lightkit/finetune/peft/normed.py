"""Weights that a layer makes of other tensors: weight norm, spectral norm and other parametrizations.

Those of `torch.nn.utils.parametrizations` are part of the layer, and a low-rank change can be put after them:
`g · v / ‖v‖ + B A`. The older `torch.nn.utils.weight_norm` and `spectral_norm` make the weight anew in a hook before
each pass, so that only a path beside the layer lasts. What is added to a weight can go into the tensors it is made of
where these can make any weight, as those of weight norm can.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.weight_norm import WeightNorm

from lightkit.finetune.peft.lowrank import LowRank

_ROUNDING = 100
"""How many units in the last place a weight may differ from the one that was to be made."""


def parametrizations(host: nn.Module, tensor: str) -> ParametrizationList | None:
    """What makes a tensor of a layer in the layer itself; None where nothing does."""
    if not parametrize.is_parametrized(host, tensor):
        return None
    return host.parametrizations[tensor]  # type: ignore[index,return-value]


def weight_of(host: nn.Module, tensor: str) -> Tensor:
    """The weight a layer computes with in eval mode; asking for it changes nothing, as a training pass might.

    Args:
        host: The layer.
        tensor: What it calls the weight.

    Returns:
        The parameter itself where the weight is one.
    """
    if tensor in host._parameters:
        return host._parameters[tensor]  # type: ignore[return-value]
    changes, hook = parametrizations(host, tensor), _weight_norm(host, tensor)
    if hook is not None:
        with torch.no_grad():
            return hook.compute_weight(host)
    if changes is None:
        return getattr(host, tensor)
    modes = {module: module.training for module in changes.modules()}
    try:
        with torch.no_grad():
            return changes.eval()()
    finally:
        for module, training in modes.items():
            module.training = training


def makings(host: nn.Module, tensor: str) -> list[nn.Parameter]:
    """The parameters that a weight is made of; none where it is a parameter itself."""
    if tensor in host._parameters:
        return []
    changes = parametrizations(host, tensor)
    if changes is not None:
        return list(changes.parameters(recurse=False))
    return [own for name, own in host.named_parameters(recurse=False) if name.startswith(f"{tensor}_")]


def makers(host: nn.Module, tensor: str) -> str:
    """What besides LoRA makes a weight, for messages: `_SpectralNorm`; empty where the weight is a parameter."""
    changes = parametrizations(host, tensor)
    if tensor in host._parameters:
        return ""
    hooks = [hook for hook in host._forward_pre_hooks.values() if getattr(hook, "name", None) == tensor]
    kinds = [type(part).__name__ for part in (hooks if changes is None else changes) if not isinstance(part, LowRank)]
    return " and ".join(kinds) or ("a hook" if changes is None else "")


def fold(host: nn.Module, tensor: str, weight: Tensor) -> dict[str, tuple[Tensor, Tensor]] | None:
    """What the tensors that a weight is made of would have to be to make another one.

    Args:
        host: The layer; not changed.
        tensor: What it calls the weight.
        weight: The weight it is to make without low-rank matrices.

    Returns:
        Name of each of these tensors below the layer → itself and the new value; None where they cannot make it.
    """
    if tensor in host._parameters:
        return {tensor: (weight_of(host, tensor), weight)}
    changes, hook = parametrizations(host, tensor), _weight_norm(host, tensor)
    if changes is not None:
        names = ["original"] if changes.is_tensor else [f"original{index}" for index in range(changes.ntensors)]
        values = _inverse([part for part in changes if not isinstance(part, LowRank)], weight)
        own = {f"parametrizations.{tensor}.{name}": getattr(changes, name) for name in names}
    elif hook is not None:
        values = (torch.norm_except_dim(weight, 2, hook.dim), weight)
        own = {name: host._parameters[name] for name in (f"{tensor}_g", f"{tensor}_v")}
    else:
        return None
    return None if values is None else _paired(own, values)


def _paired(own: Mapping[str, Tensor], values: Sequence[Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    return {name: (tensor, value.to(tensor.dtype)) for (name, tensor), value in zip(own.items(), values)}


def _weight_norm(host: nn.Module, tensor: str) -> WeightNorm | None:
    """The hook of the older weight norm that makes this tensor."""
    hooks = host._forward_pre_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, WeightNorm) and hook.name == tensor), None)


def _inverse(parts: Sequence[nn.Module], weight: Tensor) -> Sequence[Tensor] | None:
    """What goes into parametrizations for a weight to come out; None where it does not come out."""
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
