"""How wide the inputs and outputs of a module are, and in which dimension, told from its layers without running it.

Shapes: B samples, D width, C channels, which are the width of images and signals.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from lightkit.common.modules import TransposedLinear, is_norm
from lightkit.finetune.peft.injected import Injected

Sizes = tuple[int, int]


def input_width(module: nn.Module) -> int | None:
    """Width of what goes in; None where it cannot be told."""
    return next((sizes[0] for sizes in _layers(module)), None)


def output_width(module: nn.Module) -> int | None:
    """Width of what comes out: that of the last layer by order of definition; None where it cannot be told."""
    found = list(_layers(module))
    return found[-1][1] if found else None


def channels_first(module: nn.Module) -> frozenset[int]:
    """Numbers of dimensions for which its features are `(B, C, ...)`; for all others they are `(..., D)`.

    A block with a 2-d convolution in it has images `(B, C, H, W)`, or is one of a transformer with `(B, N, D)`.
    """
    found, linear = set(), False
    loose: set[int] = set()
    for part in module.modules():
        linear = linear or isinstance(part, (nn.Linear, TransposedLinear))
        if isinstance(part, _ConvNd):
            found.add(part.weight.ndim)
        elif isinstance(part, nn.GroupNorm | _NormBase):
            loose |= _dimensions(part)
    return frozenset(found if linear else found | loose)


def feature_axis(x: Tensor, width: int, first: frozenset[int]) -> int | None:
    """Which dimension of a tensor holds its features, 1 or -1; None where neither has so many.

    Args:
        x: The tensor.
        width: Number of features.
        first: From `channels_first`.
    """
    axes = (1, -1) if x.dim() in first else (-1, 1)
    return next((axis for axis in axes if axis < x.dim() and x.shape[axis] == width), None)


def _layers(module: nn.Module) -> Iterator[Sizes]:
    """Widths in and out of the layers in a module, in the order of definition."""
    if isinstance(module, Injected):
        return
    sizes = _sizes(module)
    if sizes is not None:
        yield sizes
        return
    for child in module.children():
        yield from _layers(child)


def _sizes(module: nn.Module) -> Sizes | None:
    """Widths in and out of one layer, or of an attention; None for anything else."""
    if isinstance(module, nn.MultiheadAttention):
        return module.embed_dim, module.embed_dim
    if isinstance(module, nn.RNNBase):
        return module.input_size, (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)
    qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
    if isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear):
        return qkv.in_features, proj.out_features
    own = is_norm(module) or _known(module) or next(module.parameters(recurse=False), None) is not None
    return _told(module) if own and not any(_known(part) for part in module.modules() if part is not module) else None


def _known(module: nn.Module) -> bool:
    """Layers whose weight may be a parametrized one, which is no parameter of their own."""
    return isinstance(module, (nn.Linear, TransposedLinear, _ConvNd, nn.Embedding))


def _told(module: nn.Module) -> Sizes | None:
    """What the usual attributes of a layer say."""
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


def _dimensions(norm: nn.GroupNorm | _NormBase) -> set[int]:
    """Numbers of dimensions of what a norm over channels takes."""
    if isinstance(norm, nn.GroupNorm):
        return {3, 4, 5}
    kinds = {"1d": 3, "2d": 4, "3d": 5}
    return {count for end, count in kinds.items() if type(norm).__name__.endswith(end)}
