"""The repeated blocks of a network, and the sublayers of a transformer block."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.conv import _ConvNd

from lightkit.common.modules import TransposedLinear, inside, is_norm, parent_of
from lightkit.finetune.peft.injected import Injected

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LAYERS = (nn.Linear, TransposedLinear, _ConvNd, nn.MultiheadAttention)
_NO_BLOCKS = (Injected, nn.MultiheadAttention)
_ATTENTION = re.compile(r"att(entio)?n", re.IGNORECASE)
_FEED_FORWARD = ("mlp", "ffn", "ff", "feed_forward", "feedforward")

_Child = tuple[str, nn.Module]


def blocks(model: nn.Module) -> list[str]:
    """Paths of the repeated blocks, in the order of the network; empty where there are none.

    A block is an element of a list or sequence of modules and holds at least two linear layers or convolutions. Its
    class stands there more than once, or it has an attention of its own: layers of `nn.TransformerEncoder`, blocks of
    lightkit, torchvision and timm. Of blocks within blocks (stages) the innermost count. A network without such blocks
    may have sequences in a sequence, as the stages of lightkit's CNN, or equal modules side by side in any module, or
    a list of modules of one class that hold a single layer each, and more (convolution, norm, activation).

    Args:
        model: The network.
    """
    children = list(_elements(model, CONTAINERS))
    found = _siblings(children) or _classmates(children) or _sequences(children)
    return _innermost(found or _siblings(list(_elements(model, (nn.Module,)))) or _single_layers(children))


def sublayers(block: nn.Module) -> tuple[list[str], str | None]:
    """Names of a transformer block's attentions, and of its feed-forward part or the last layer of that.

    Args:
        block: The block, such as `nn.TransformerEncoderLayer`.

    Returns:
        No names and None where it has no such parts.
    """
    children = dict(block.named_children())
    attentions = [name for name, module in children.items() if is_attention(name, module)]
    feed_forward = next((name for name in _FEED_FORWARD if name in children), None)
    if feed_forward is None:
        linear = [name for name, module in children.items() if isinstance(module, nn.Linear)]
        feed_forward = linear[-1] if linear else None
    return attentions, feed_forward


def is_attention(name: str, module: nn.Module) -> bool:
    """Whether a module with this name in its parent is an attention: its name or class says so, and it has weights."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    kind = type(module).__name__
    told = _ATTENTION.search(name) or (_ATTENTION.search(kind) and not kind.endswith(("Block", "Layer")))
    if not told or is_norm(module) or isinstance(module, (Injected, *CONTAINERS)):
        return False
    return any(parameter.ndim > 1 for parameter in module.parameters())


def _elements(model: nn.Module, parents: tuple[type[nn.Module], ...]) -> Iterator[_Child]:
    """Elements of all modules of some classes."""
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if path and isinstance(modules[parent_of(path)], parents) and not isinstance(module, _NO_BLOCKS):
            yield path, module


def _siblings(children: list[_Child]) -> list[_Child]:
    """Elements of a class that some list has twice, or that have an attention."""
    blocks = _of_several_layers(children)
    together = Counter((parent_of(path), type(module)) for path, module in blocks)
    repeated = {kind for (_, kind), count in together.items() if count > 1}
    return [(path, block) for path, block in blocks if type(block) in repeated or sublayers(block)[0]]


def _classmates(children: list[_Child]) -> list[_Child]:
    """Elements of a class that the network has twice."""
    blocks = _of_several_layers(children)
    repeated = Counter(type(module) for _, module in blocks)
    return [(path, block) for path, block in blocks if repeated[type(block)] > 1]


def _sequences(children: list[_Child]) -> list[_Child]:
    """Sequences with a layer and something more, of which there are several."""
    found = [
        (path, module)
        for path, module in children
        if isinstance(module, nn.Sequential) and len(module) > 1 and _layers(module)
    ]
    repeated = Counter(parent_of(path) for path, _ in found)
    return [(path, module) for path, module in found if repeated[parent_of(path)] > 1]


def _single_layers(children: list[_Child]) -> list[_Child]:
    """Elements of a class that some list has twice, and that hold one layer and something more."""
    found = [
        (path, module)
        for path, module in children
        if type(module) not in CONTAINERS and _layers(module) == 1 and len(list(module.children())) > 1
    ]
    together = Counter((parent_of(path), type(module)) for path, module in found)
    return [(path, module) for path, module in found if together[parent_of(path), type(module)] > 1]


def _of_several_layers(children: list[_Child]) -> list[_Child]:
    return [
        (path, module)
        for path, module in children
        if type(module) not in CONTAINERS and _layers(module) > 1 and not is_attention(path.rpartition(".")[2], module)
    ]


def _layers(module: nn.Module) -> int:
    return sum(isinstance(part, _LAYERS) for part in module.modules())


def _innermost(found: list[_Child]) -> list[str]:
    paths = [path for path, _ in found]
    return [path for path in paths if not any(other != path and inside(other, path) for other in paths)]
