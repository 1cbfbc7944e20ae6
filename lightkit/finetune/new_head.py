"""Another output layer in the place of the one that a network has."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from lightkit.common.errors import UserError
from lightkit.common.modules import TransposedLinear, replace_submodule
from lightkit.finetune.head import CONVOLUTIONS, KEY, LAYERS, Head

INIT = ("default", "zeros", "normal")


def outputs_of(model: nn.Module, path: str) -> int:
    """Number of outputs of a layer that can be replaced."""
    layer: Any = model.get_submodule(path)
    if isinstance(layer, TransposedLinear):
        return int(layer.nf)
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def gives(model: nn.Module, head: Head, outputs: int) -> bool:
    """Whether an output layer has so many outputs, as far as that can be told."""
    if _is_layer(model, head.path) and not head.other:
        return outputs_of(model, head.path) == outputs
    return head.sizes is None or outputs in (head.sizes or (1,))


def _is_layer(model: nn.Module, path: str) -> bool:
    """Whether a path is that of a layer that another one can be made like."""
    return isinstance(dict(model.named_modules(remove_duplicate=False)).get(path), LAYERS)


def replace_head(model: nn.Module, head: Head, outputs: int, *, init: str = "default") -> None:
    """Put a new output layer in the place of another: same inputs, other outputs, new weights.

    Args:
        model: The network; changed in place.
        head: From `find_head`.
        outputs: Number of outputs.
        init: `default`: as PyTorch starts such a layer; `zeros`: all outputs start equal; `normal`: standard deviation
            0.01, biases zero.

    Raises:
        UserError: There is no such way to start it, or it is not known how such a layer is built.
    """
    if init not in INIT:
        raise UserError("no such way to start a layer", key="finetune.head.init", received=init, choices=INIT)
    if head.other:
        what = f"a new {head.path} would not change the outputs, which {head.other} computes"
        fix = f"{KEY}={head.other}, or finetune.head.replace=never"
        raise UserError(what, key=KEY, received=head.path, fix=fix)
    reason = _stuck(model, head.path, outputs)
    if reason:
        raise UserError(
            f"the output layer cannot be replaced: {reason}",
            key="finetune.head.replace",
            expected=f"a linear layer or a convolution, to be made anew for {outputs} outputs",
            received=head.describe(),
            fix="let the network's class take num_classes, which is then that of the data, and build itself for it",
        )
    old = model.get_submodule(head.path)
    new = _like(old, outputs)
    new.to(device=old.weight.device, dtype=old.weight.dtype)  # type: ignore[arg-type]
    new.train(old.training)
    _start(new, init)
    replace_submodule(model, head.path, new)
    for holder in (model, getattr(model, "config", None)):
        for size in ("num_classes", "num_labels"):
            if isinstance(getattr(holder, size, None), int):
                setattr(holder, size, outputs)


def _stuck(model: nn.Module, path: str, outputs: int) -> str | None:
    """Why no layer like the one at `path` can be made."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if path not in modules:
        return f"{path} is a parameter that no layer holds alone"
    layer: Any = modules[path]
    kind = type(layer).__name__
    if not isinstance(layer, LAYERS):
        return f"{path} is a {kind}, and how one is built for another number of outputs is not known"
    if isinstance(layer, CONVOLUTIONS) and outputs % int(layer.groups):  # type: ignore[arg-type]
        return f"{path} has {layer.groups} groups, which cannot share {outputs} outputs"
    own: Iterable[tuple[str, Tensor]] = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    sized = [name for name, each in own if name not in ("weight", "bias") and outputs_of(model, path) in each.shape]
    if sized and type_before_parametrizations(layer) is not nn.Linear and not isinstance(layer, CONVOLUTIONS):
        return f"{path} is a {kind}, whose {sized[0]} depends on the number of outputs too"
    return None


def _like(old: Any, outputs: int) -> nn.Module:
    if type_before_parametrizations(old) is nn.Linear:
        return nn.Linear(old.in_features, outputs, bias=old.bias is not None)
    if not isinstance(old, CONVOLUTIONS):
        return _resized(old, outputs)
    kind = next(kind for kind in CONVOLUTIONS if isinstance(old, kind))
    keys = ["in_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    keys += ["output_padding"] if old.transposed else []
    return kind(out_channels=outputs, bias=old.bias is not None, **{key: getattr(old, key) for key in keys})


def _resized(old: nn.Module, outputs: int) -> nn.Module:
    """A linear layer of a class of its own, with all that it was told but the number of outputs."""
    new: Any = copy.deepcopy(old)
    transposed = isinstance(old, TransposedLinear)
    setattr(new, "nf" if transposed else "out_features", outputs)
    inputs = new.weight.shape[0 if transposed else 1]
    new.weight = nn.Parameter(new.weight.new_empty((inputs, outputs) if transposed else (outputs, inputs)))
    if new.bias is not None:
        new.bias = nn.Parameter(new.bias.new_zeros(outputs))
    if callable(getattr(new, "reset_parameters", None)):
        new.reset_parameters()
    else:
        nn.init.normal_(new.weight, std=0.02)
    return new


def _start(layer: nn.Module, init: str) -> None:
    if init == "default":
        return
    weight, bias = layer.weight, layer.bias
    if init == "zeros":
        nn.init.zeros_(weight)  # type: ignore[arg-type]
    else:
        nn.init.normal_(weight, std=0.01)  # type: ignore[arg-type]
    if bias is not None:
        nn.init.zeros_(bias)  # type: ignore[arg-type]
