"""Alike networks computed at once: their weights stacked, one call for all of them.

Shapes: B samples, C outputs, M networks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.ensemble.dropout import layer_by_layer
from lightkit.trainer.tasks import logits

_ON_CPU, _ON_GPU = (10, 1 << 12), (2, 1 << 24)
"""From how many networks on it pays, of how many parameters at most. What is saved is the time that each operation
takes beside its computing; the weights are in memory twice."""
_OF_MODULES = frozenset(vars(nn.Module()))
_FLOAT, _HALF = 1e-5, 0.05
"""How far the outputs may be from those of each network alone, in single and half precision."""


def alone(networks: Sequence[nn.Module], *x: Any) -> Tensor:
    """Compute the outputs `(M, B, C)` of one network after the other."""
    return torch.stack([_table(logits(network(*x))) for network in networks])


@dataclass(frozen=True)
class Stacked:
    """The weights of alike networks, stacked.

    Args:
        skeleton: One of the networks, without weights.
        tensors: Its parameters and buffers by name, those of all networks in the first dimension.
        sources: All tensors that they were made of.
        version: Sum of the counters of changes of these tensors.
    """

    skeleton: nn.Module
    tensors: Mapping[str, Tensor]
    sources: Sequence[Tensor]
    version: int

    @property
    def current(self) -> bool:
        """Tell whether the networks have the weights that were stacked."""
        return _version(self.sources) == self.version

    def outputs(self, *x: Any) -> Tensor:
        """Compute the outputs `(M, B, C)`.

        Raises:
            RuntimeError: The networks do something that cannot be done for all of them at once.
        """

        def one(tensors: dict[str, Tensor]) -> Tensor:
            return _table(logits(torch.func.functional_call(self.skeleton, tensors, x)))

        with layer_by_layer():
            found: Tensor = torch.func.vmap(one)(dict(self.tensors))
        return found


def stack(networks: Sequence[nn.Module]) -> Stacked | None:
    """Stack the weights of networks; None where they are not alike, or one after the other is faster.

    Args:
        networks: The networks, in eval mode.
    """
    first = networks[0]
    tensors = [_tensors(network) for network in networks]
    sources = [tensor for own in tensors for tensor in own.values()]
    if not sources or any(map(torch.is_inference, sources)):
        return None
    fewest, largest = _ON_CPU if sources[0].device.type == "cpu" else _ON_GPU
    size = sum(parameter.numel() for parameter in first.parameters())
    if len(networks) < fewest or size > largest or not all(alike(first, other) for other in networks[1:]):
        return None
    stacked = {name: torch.stack([own[name].detach() for own in tensors]) for name in tensors[0]}
    return Stacked(copy.deepcopy(first).to("meta"), stacked, sources, _version(sources))


def agrees(found: Tensor, expected: Tensor) -> bool:
    """Tell whether outputs are the same but for rounding."""
    limit = _HALF if found.dtype in (torch.float16, torch.bfloat16) else _FLOAT
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=limit, atol=limit, equal_nan=True)


def alike(one: nn.Module, other: nn.Module) -> bool:
    """Tell whether two networks differ in nothing but the values of their parameters and buffers."""
    parts, others = dict(one.named_modules()), dict(other.named_modules())
    if parts.keys() != others.keys():
        return False
    pairs = [(part, others[name]) for name, part in parts.items()]
    if not all(type(a) is type(b) and _settings(a) == _settings(b) for a, b in pairs):
        return False
    shapes = [{name: (t.shape, t.dtype, t.device) for name, t in _tensors(network).items()} for network in (one, other)]
    return shapes[0] == shapes[1]


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return what a module has beside tensors and parts, with what can only be compared as an object as that."""
    plain = (int, float, str, bytes, bool, type(None), torch.dtype, torch.device)

    def comparable(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value), [comparable(entry) for entry in value]
        if isinstance(value, dict):
            return {key: comparable(entry) for key, entry in value.items()}
        return value if isinstance(value, plain) else id(value)

    own = {name: comparable(value) for name, value in vars(module).items() if name not in _OF_MODULES}
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return {**own, "": [id(hook) for hook in hooks]}


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _version(tensors: Sequence[Tensor]) -> int:
    return sum(tensor._version for tensor in tensors)


def _table(output: Tensor) -> Tensor:
    return output[:, None] if output.ndim == 1 else output
