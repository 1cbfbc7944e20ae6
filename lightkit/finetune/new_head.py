"""Another output layer in the place of the one that a network has."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from lightkit.common.argument_checks import check_choice
from lightkit.common.errors import UserError
from lightkit.common.modules import TransposedLinear, replace_submodule
from lightkit.finetune.head import CONVOLUTIONS, KEY, LAYERS, Head

INIT = ("default", "zeros", "normal")


def outputs_of(model: nn.Module, path: str) -> int:
    """Return the number of outputs of a layer that can be replaced."""
    layer: Any = model.get_submodule(path)
    if isinstance(layer, TransposedLinear):
        return int(layer.nf)
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)


def has_outputs(model: nn.Module, head: Head, outputs: int) -> bool:
    """Tell whether an output layer has so many outputs, as far as that can be told."""
    layer = dict(model.named_modules(remove_duplicate=False)).get(head.path)
    if isinstance(layer, LAYERS) and not head.computed_by and not head.beside:
        return outputs_of(model, head.path) == outputs
    return head.output_shape is None or outputs in (head.output_shape or (1,))


def replace_head(model: nn.Module, head: Head, outputs: int, *, init: str = "default") -> list[str]:
    """Put a new output layer in the place of another: same inputs, other outputs, new weights.

    Where several layers make the outputs, all of them with that number of outputs are replaced.

    Args:
        model: The network; changed in place.
        head: From `find_head`.
        outputs: Number of outputs.
        init: `default`: as PyTorch starts such a layer; `zeros`: all outputs start equal; `normal`: standard deviation
            0.01, biases zero.

    Returns:
        The paths of the new layers.

    Raises:
        UserError: There is no such way to start it, or it is not known how such a layer is built.
    """
    check_choice("init", init, INIT, "no such way to start a layer")
    if head.computed_by:
        what = f"a new {head.path} would not change the outputs, which {head.computed_by} computes"
        fix = f"{KEY}={head.computed_by}, or finetune.head.replace=never"
        raise UserError(what, argument="name", received=head.path, fix=fix)
    sized = _sized_parts(model, head)
    reason = next(filter(None, (_why_not(model, path, outputs) for path in sized)), None)
    if not sized:
        shape = " × ".join(map(str, head.output_shape or ()))
        reason = f"its parts make {shape} outputs together, and how many each is to make is not known"
    if reason:
        raise UserError(
            f"the output layer cannot be replaced: {reason}",
            argument="replace",
            expected=f"a linear layer or a convolution, to be made anew for {outputs} outputs",
            received=head.describe(),
            fix="let the network's class take num_classes, which is then that of the data, and build itself for it",
        )
    for path in sized:
        old: Any = model.get_submodule(path)
        new = _make_like(old, outputs)
        new.to(device=old.weight.device, dtype=old.weight.dtype)
        new.train(old.training)
        _initialize(new, init)
        replace_submodule(model, path, new)
    for owner in (model, getattr(model, "config", None)):
        for size in ("num_classes", "num_labels"):
            if isinstance(getattr(owner, size, None), int):
                setattr(owner, size, outputs)
    return sized


def _sized_parts(model: nn.Module, head: Head) -> list[str]:
    """Return the parts of an output layer that depend on the number of outputs; none where each makes some of them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    counts = {part: outputs_of(model, part) for part in head.parts if isinstance(modules.get(part), LAYERS)}
    if not head.beside or not counts:
        return [head.path]
    known = head.output_shape or tuple(counts.values())
    count = next((number for number in counts.values() if number in known), None)

    def depends(part: str) -> bool:
        tensors = [model.get_parameter(part)] if part not in modules else list(modules[part].parameters())
        return counts[part] == count if part in counts else any(count in tensor.shape for tensor in tensors)

    return [part for part in head.parts if count is not None and depends(part)]


def _why_not(model: nn.Module, path: str, outputs: int) -> str | None:
    """Return why no layer like the one at `path` can be made."""
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


def _initialize(layer: Any, init: str) -> None:
    if init == "zeros":
        nn.init.zeros_(layer.weight)
    elif init == "normal":
        nn.init.normal_(layer.weight, std=0.01)
    if init != "default" and layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _make_like(old: Any, outputs: int) -> Any:
    """Make a layer of the class and with the settings of another, but for the number of outputs."""
    if type_before_parametrizations(old) is nn.Linear:
        return nn.Linear(old.in_features, outputs, bias=old.bias is not None)
    if isinstance(old, CONVOLUTIONS):
        convolution: Any = old
        kind = next(kind for kind in CONVOLUTIONS if isinstance(old, kind))
        names = ["in_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
        names += ["output_padding"] if convolution.transposed else []
        settings = {name: getattr(old, name) for name in names}
        return kind(out_channels=outputs, bias=convolution.bias is not None, **settings)
    # A linear layer of a class of its own: a copy with other weights.
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
