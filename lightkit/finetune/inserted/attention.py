"""The attentions that can be given learnt keys and values, and what is known of each.

Besides `nn.MultiheadAttention` these are modules with a linear layer `qkv` for queries, keys and values, a linear layer
`proj` at the end, and a number of heads: lightkit's, timm's and the windowed ones of torchvision's Swin transformers.

Shapes: B samples, N positions, D width, H heads, K = D / H width of a head.
"""

from __future__ import annotations

import re

from torch import nn

from lightkit.finetune.inserted.injected import Injected
from lightkit.finetune.inserted.room import argument_names

_TIED_TO_POSITIONS = re.compile(r"relative_position|rel_pos|(^|_)rope|num_prefix_tokens|logit_scale|temperature")


def attentions(model: nn.Module) -> list[str]:
    """Paths of the attentions that can be given prefixes, in the order of the network."""
    return [path for path, module in model.named_modules() if is_supported(module)]


def is_supported(module: nn.Module) -> bool:
    """Whether a module is an attention that can be given a prefix."""
    return isinstance(module, nn.MultiheadAttention) or is_packed(module)


def is_packed(module: nn.Module) -> bool:
    """Whether a module has a layer `qkv` that makes queries, keys and values, in this order, and a layer `proj`."""
    qkv, proj, heads = (getattr(module, name, None) for name in ("qkv", "proj", "num_heads"))
    heads = heads if heads is not None else getattr(module, "heads", None)
    if isinstance(module, Injected) or not (isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear)):
        return False
    return isinstance(heads, int) and proj.in_features % heads == 0 and qkv.out_features == 3 * proj.in_features


def heads_of(module: nn.Module) -> tuple[int, int]:
    """Number of heads H and width of a head K of a supported attention."""
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads, module.head_dim
    heads = getattr(module, "num_heads", None) or module.heads
    return heads, module.proj.in_features // heads  # type: ignore[return-value,union-attr,operator]


def takes_more_positions(module: nn.Module) -> bool:
    """Whether an attention can work on more positions than the network gives it.

    One that has a table of the distances between them, or is handed one, can't.
    """
    if isinstance(module, nn.MultiheadAttention):
        return True
    arguments = argument_names(module)[1:]
    names = [*vars(module), *module._parameters, *module._buffers, *module._modules, *arguments]
    if any(_TIED_TO_POSITIONS.search(name) for name in names):
        return False
    return not is_packed(module) or set(arguments) <= {"attn_mask", "is_causal", "rotary"}
