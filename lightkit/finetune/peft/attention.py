"""The attentions that can be given learnt keys and values, and what is known of each.

Besides `nn.MultiheadAttention` these are modules with a linear layer `qkv` for queries, keys and values, a linear layer
`proj` at the end, and a number of heads ("packed"): lightkit's, timm's and the windowed ones of torchvision's Swin
transformers. Those of transformers ("split") have layers of their own for queries, keys and values, or `c_attn` for all
of them, and the size of a head; BERT's and the like leave the layer at the end to the module around them.

Shapes: B samples, N positions, D features, H heads, K = D / H features of a head.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.modules import TransposedLinear
from lightkit.finetune.peft.injected import Injected

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
