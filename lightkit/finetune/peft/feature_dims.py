"""How many features the inputs and outputs of a module have, and in which dimension, told without running it.

Shapes: B samples, D features, C channels, which are the features of images and signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from lightkit.common.modules import TransposedLinear, is_norm
from lightkit.finetune.peft.injected import Injected

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
