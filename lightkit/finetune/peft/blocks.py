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
_NEVER_BLOCKS = (Injected, nn.MultiheadAttention)
_ATTENTION = re.compile(r"att(entio)?n", re.IGNORECASE)
_FEED_FORWARD = ("mlp", "ffn", "ff", "feed_forward", "feedforward")

_Named = tuple[str, nn.Module]


def find_blocks(model: nn.Module) -> list[str]:
    """Return the paths of the repeated blocks, in the order of the network; empty where there are none.

    A block is an element of a list or sequence of modules and holds at least two linear layers or convolutions. Its
    class stands there more than once, or it has an attention of its own: layers of `nn.TransformerEncoder`, blocks of
    lightkit, torchvision and timm. Of blocks within blocks (stages) the innermost count. A network without such blocks
    may have sequences in a sequence, as the stages of lightkit's CNN, or equal modules side by side in any module, or
    a list of modules of one class that hold a single layer each, and more (convolution, norm, activation).

    Args:
        model: The network.
    """
    elements = list(_children_of(model, CONTAINERS))
    found = (
        _repeated_side_by_side(elements)
        or _repeated_anywhere(elements)
        or _repeated_sequences(elements)
        or _repeated_side_by_side(list(_children_of(model, (nn.Module,))))
        or _repeated_single_layers(elements)
    )
    paths = [path for path, _ in found]
    return [path for path in paths if not any(other != path and inside(other, path) for other in paths)]


def sublayers(block: nn.Module) -> tuple[list[str], str | None]:
    """Return the names of a transformer block's attentions, and of its feed-forward part or the last layer of that.

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
    """Tell whether a module with this name in its parent is an attention, by its name or class and its weights."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    kind = type(module).__name__
    called_so = _ATTENTION.search(name) or (_ATTENTION.search(kind) and not kind.endswith(("Block", "Layer")))
    if not called_so or is_norm(module) or isinstance(module, (Injected, *CONTAINERS)):
        return False
    return any(parameter.ndim > 1 for parameter in module.parameters())


def _children_of(model: nn.Module, parents: tuple[type[nn.Module], ...]) -> Iterator[_Named]:
    """Yield the children of all modules of some classes."""
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if path and isinstance(modules[parent_of(path)], parents) and not isinstance(module, _NEVER_BLOCKS):
            yield path, module


def _repeated_side_by_side(modules: list[_Named]) -> list[_Named]:
    """Return those of several layers whose class some parent has twice, or that have an attention."""
    blocks = _with_several_layers(modules)
    counts = Counter((parent_of(path), type(module)) for path, module in blocks)
    repeated = {kind for (_, kind), count in counts.items() if count > 1}
    return [(path, block) for path, block in blocks if type(block) in repeated or sublayers(block)[0]]


def _repeated_anywhere(modules: list[_Named]) -> list[_Named]:
    """Return those of several layers whose class the network has twice."""
    blocks = _with_several_layers(modules)
    counts = Counter(type(module) for _, module in blocks)
    return [(path, block) for path, block in blocks if counts[type(block)] > 1]


def _repeated_sequences(modules: list[_Named]) -> list[_Named]:
    """Return sequences with a layer and something more, of which there are several side by side."""
    sequences = [
        (path, module)
        for path, module in modules
        if isinstance(module, nn.Sequential) and len(module) > 1 and _count_layers(module)
    ]
    counts = Counter(parent_of(path) for path, _ in sequences)
    return [(path, module) for path, module in sequences if counts[parent_of(path)] > 1]


def _repeated_single_layers(modules: list[_Named]) -> list[_Named]:
    """Return those of one layer and something more whose class their parent has twice."""
    single = [
        (path, module)
        for path, module in modules
        if type(module) not in CONTAINERS and _count_layers(module) == 1 and len(list(module.children())) > 1
    ]
    counts = Counter((parent_of(path), type(module)) for path, module in single)
    return [(path, module) for path, module in single if counts[parent_of(path), type(module)] > 1]


def _with_several_layers(modules: list[_Named]) -> list[_Named]:
    return [
        (path, module)
        for path, module in modules
        if type(module) not in CONTAINERS
        and _count_layers(module) > 1
        and not is_attention(path.rpartition(".")[2], module)
    ]


def _count_layers(module: nn.Module) -> int:
    return sum(isinstance(part, _LAYERS) for part in module.modules())
