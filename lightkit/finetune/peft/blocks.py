"""What is known of a network without running it: its repeated blocks, their sublayers, its attentions, and features.

Attentions that can be given learnt keys and values are, besides `nn.MultiheadAttention`, modules with a linear layer
`qkv` for queries, keys and values, a linear layer `proj` at the end, and a number of heads ("packed"): lightkit's,
timm's and the windowed ones of torchvision's Swin transformers. Those of transformers ("split") have layers of their
own for queries, keys and values, or `c_attn` for all of them, and the size of a head; BERT's and the like leave the
layer at the end to the module around them.

Shapes: B samples, N positions, D features, C channels, which are the features of images and signals, H heads, K = D / H
features of a head.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
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
    blocks = (
        _repeated_side_by_side(elements)
        or _repeated_anywhere(elements)
        or _repeated_sequences(elements)
        or _repeated_side_by_side(list(_children_of(model, (nn.Module,))))
        or _repeated_single_layers(elements)
    )
    paths = [path for path, _ in blocks]
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


_BATCH_DIMS = {"1d": 3, "2d": 4, "3d": 5}
"""How the names of norm layers end → number of dimensions of a batch."""
CONVOLUTION: dict[int, Callable[..., Tensor]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
"""Number of dimensions of a batch → the convolution for it."""
Sizes = tuple[int, int]


def input_dim(module: nn.Module) -> int | None:
    """Return the number of features that go in; None where it cannot be told."""
    return next((sizes[0] for sizes in _layer_sizes(module)), None)


def output_dim(module: nn.Module) -> int | None:
    """Return the number of features that the last layer by order of definition gives; None where it cannot be told."""
    sizes = list(_layer_sizes(module))
    return sizes[-1][1] if sizes else None


def channels_first(module: nn.Module) -> frozenset[int]:
    """Return the numbers of dimensions for which features are `(B, C, ...)`; for all others they are `(..., D)`.

    A block with a 2-d convolution in it has images `(B, C, H, W)`, or is one of a transformer with `(B, N, D)`.
    """
    of_convolutions, of_norms, linear = set[int](), set[int](), False
    for part in module.modules():
        linear = linear or isinstance(part, (nn.Linear, TransposedLinear))
        if isinstance(part, _ConvNd):
            of_convolutions.add(part.weight.ndim)
        elif isinstance(part, nn.GroupNorm):
            of_norms |= set(_BATCH_DIMS.values())
        elif isinstance(part, _NormBase):
            of_norms |= {dims for end, dims in _BATCH_DIMS.items() if type(part).__name__.endswith(end)}
    return frozenset(of_convolutions if linear else of_convolutions | of_norms)


def feature_axis(x: Tensor, size: int, first: frozenset[int]) -> int | None:
    """Return which dimension of a tensor holds its features, 1 or -1; None where neither has so many.

    Args:
        x: The tensor.
        size: Number of features.
        first: From `channels_first`.
    """
    axes = (1, -1) if x.dim() in first else (-1, 1)
    return next((axis for axis in axes if axis < x.dim() and x.shape[axis] == size), None)


def _layer_sizes(module: nn.Module) -> Iterator[Sizes]:
    """Yield the inputs and outputs of the layers in a module, in the order of definition."""
    if isinstance(module, Injected):
        return
    sizes = _sizes(module)
    if sizes is not None:
        yield sizes
        return
    for child in module.children():
        yield from _layer_sizes(child)


def _sizes(module: nn.Module) -> Sizes | None:
    """Return the inputs and outputs of one layer, or of an attention; None for anything else."""
    if isinstance(module, nn.MultiheadAttention):
        return module.embed_dim, module.embed_dim
    if isinstance(module, nn.RNNBase):
        return module.input_size, (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
    qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
    if isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear):
        return qkv.in_features, proj.out_features
    is_layer = is_norm(module) or _is_known(module) or next(module.parameters(recurse=False), None) is not None
    if not is_layer or any(_is_known(part) for part in module.modules() if part is not module):
        return None
    return _declared_sizes(module)


def _is_known(module: nn.Module) -> bool:
    """Tell whether it is a layer by its class: its weight may be a parametrized one, and no parameter of its own."""
    return isinstance(module, (nn.Linear, TransposedLinear, _ConvNd, nn.Embedding))


def _declared_sizes(module: nn.Module) -> Sizes | None:
    """Return what the usual attributes of a layer say of its inputs and outputs."""
    if isinstance(module, TransposedLinear):
        inputs, outputs = module.weight.shape
        return int(inputs), int(outputs)
    for names in (("in_features", "out_features"), ("in_channels", "out_channels")):
        pair = tuple(getattr(module, name, None) for name in names)
        if all(isinstance(size, int) for size in pair):
            return pair  # type: ignore[return-value]
    for name in ("normalized_shape", "num_features", "num_channels", "embedding_dim"):
        size = getattr(module, name, None)
        size = size[-1] if isinstance(size, tuple | list) and size else size
        if isinstance(size, int):
            return size, size
    return None


KNOWN = "nn.MultiheadAttention; modules with linear layers qkv and proj and a number of heads; those of transformers"
"""Attentions that a prefix can be put into, for messages."""
_LINEAR = (nn.Linear, TransposedLinear)
_QUERIES = {"q_proj": ("k_proj", "v_proj"), "query": ("key", "value"), "q_lin": ("k_lin", "v_lin")}
"""What the layers are called in transformers: that of the queries, and those of keys and values."""
_OUTPUTS = ("proj", "o_proj", "out_proj", "c_proj", "out_lin", "dense")


def attentions(model: nn.Module) -> list[str]:
    """Return the paths of the attentions that can be given prefixes, in the order of the network."""
    return [path for path, module in model.named_modules() if is_supported(module)]


def is_supported(module: nn.Module) -> bool:
    """Tell whether a module is an attention that can be given a prefix."""
    return isinstance(module, nn.MultiheadAttention) or is_packed(module) or is_split(module)


def is_packed(module: nn.Module) -> bool:
    """Tell whether a module has a layer `qkv` that makes queries, keys and values, in this order, and one `proj`."""
    qkv, proj, heads = (getattr(module, name, None) for name in ("qkv", "proj", "num_heads"))
    heads = heads if heads is not None else getattr(module, "heads", None)
    if isinstance(module, Injected) or not (isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear)):
        return False
    return isinstance(heads, int) and proj.in_features % heads == 0 and qkv.out_features == 3 * proj.in_features


def is_split(module: nn.Module) -> bool:
    """Tell whether a module is an attention of transformers: layers for queries, keys, values, and a size of heads."""
    head_dim, queries, output = _head_dim(module), _query_layer(module), output_projection(module)
    if head_dim is None or queries is None or isinstance(module, Injected) or queries[1] % head_dim:
        return False
    return hasattr(module, "query") if output is None else _linear_sizes(output)[0] == queries[1]


def attention_queries(module: Any, x: Tensor) -> Tensor:
    """Compute the queries of a packed or split attention, before any positions rotate them.

    Args:
        module: The attention.
        x: Its input, `(..., D)`.

    Returns:
        Shape `(..., H, K)`.
    """
    layer, count = (module.qkv, module.proj.in_features) if is_packed(module) else _query_layer(module)  # type: ignore[misc]
    if layer._forward_hooks or not isinstance(layer, nn.Linear):
        queries = layer(x)[..., :count]  # a layer with a hook, such as LoRA's, has to be run
    else:
        queries = F.linear(x, layer.weight[:count], None if layer.bias is None else layer.bias[:count])
    queries = queries.unflatten(-1, head_sizes(module))
    return module.q_norm(queries) if isinstance(getattr(module, "q_norm", None), nn.Module) else queries


def output_projection(module: nn.Module) -> nn.Module | None:
    """Return the layer at the end of a packed or split attention; None where it has none."""
    candidates = (getattr(module, name, None) for name in _OUTPUTS)
    return next((layer for layer in candidates if isinstance(layer, _LINEAR)), None)


def apply_without_bias(layer: Any, x: Tensor) -> Tensor:
    """Apply a linear layer but for its bias."""
    if layer._forward_hooks or not isinstance(layer, nn.Linear):
        return layer(x) if layer.bias is None else layer(x) - layer.bias
    return F.linear(x, layer.weight)


def head_sizes(module: nn.Module) -> tuple[int, int]:
    """Return the number of heads H and the features of a head K of a supported attention."""
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads, module.head_dim
    if not is_packed(module):
        head_dim: Any = _head_dim(module)
        return _query_layer(module)[1] // head_dim, head_dim  # type: ignore[index]
    heads = getattr(module, "num_heads", None) or module.heads
    return heads, module.proj.in_features // heads  # type: ignore[return-value,union-attr,operator]


def _head_dim(module: nn.Module) -> int | None:
    sizes = (getattr(module, name, None) for name in ("head_dim", "attention_head_size"))
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _query_layer(module: nn.Module) -> tuple[nn.Module, int] | None:
    """Return the layer that makes the queries, and how many of its first outputs these are."""
    packed = getattr(module, "c_attn", None)
    if isinstance(packed, _LINEAR):
        inputs, outputs = _linear_sizes(packed)
        return (packed, inputs) if outputs == 3 * inputs else None
    for name, others in _QUERIES.items():
        layers: list[Any] = [getattr(module, each, None) for each in (name, *others)]
        if all(isinstance(layer, nn.Linear) for layer in layers):
            return layers[0], _linear_sizes(layers[0])[1]
    return None


def _linear_sizes(layer: Any) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a linear layer."""
    rows, columns = layer.weight.shape
    return (rows, columns) if isinstance(layer, TransposedLinear) else (columns, rows)
