"""The output layer of a network: where it is, and another one in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.modules import HEADS, inside, path_of, replace_submodule

Layer = (nn.Linear, nn.Conv1d, nn.Conv2d)
INIT = ("default", "zeros", "normal")


def find_head(model: nn.Module, name: str | None = None) -> str | None:
    """Path of the output layer.

    timm's models tell it. Otherwise it is the last linear layer (or convolution) of the part with a usual name, or else
    the last linear layer of all.

    Args:
        model: The network.
        name: Its path, or that of a part that ends in it; None looks for it.

    Returns:
        The path; None where there is no such layer.

    Raises:
        UserError: There is nothing of the given name, or no output layer in it.
    """
    if name is not None:
        return _named(model, name)
    classifier = _told(model)
    if classifier is not None:
        return classifier
    for usual in HEADS:
        if isinstance(getattr(model, usual, None), nn.Module):
            layers = _layers(model, usual)
            if layers:
                return layers[-1]
    linear = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else None


def outputs_of(model: nn.Module, path: str) -> int:
    """Number of outputs of an output layer."""
    layer = model.get_submodule(path)
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]


def replace_head(model: nn.Module, path: str, outputs: int, *, init: str = "default") -> None:
    """Put a new output layer in the place of the one at `path`: same inputs, other outputs, new weights.

    Args:
        model: The network; changed in place.
        path: From `find_head`.
        outputs: Number of outputs.
        init: `default`: as PyTorch starts such a layer; `zeros`: all outputs start equal; `normal`: standard deviation
            0.01, biases zero.

    Raises:
        UserError: There is no such way to start it.
    """
    if init not in INIT:
        raise UserError("no such way to start a layer", key="finetune.head.init", received=init, choices=INIT)
    old = model.get_submodule(path)
    new = _like(old, outputs)
    new.to(device=old.weight.device, dtype=old.weight.dtype)  # type: ignore[arg-type]
    new.train(old.training)
    _start(new, init)
    replace_submodule(model, path, new)
    if isinstance(getattr(model, "num_classes", None), int):
        model.num_classes = outputs  # type: ignore[assignment]


def _named(model: nn.Module, name: str) -> str:
    modules = {path: module for path, module in model.named_modules() if path}
    if name not in modules:
        choices = [path for path, module in modules.items() if isinstance(module, Layer)]
        raise UserError("the network has no such module", key="finetune.head.name", received=name, choices=choices)
    layers = _layers(model, name)
    if not layers:
        received = f"{name} ({type(modules[name]).__name__})"
        expected = "a linear layer or convolution, or a part that ends in one"
        raise UserError("not an output layer", key="finetune.head.name", received=received, expected=expected)
    return layers[-1]


def _layers(model: nn.Module, part: str) -> list[str]:
    return [path for path, module in model.named_modules() if inside(path, part) and isinstance(module, Layer)]


def _told(model: nn.Module) -> str | None:
    """What a model of timm says its classifier is."""
    tell = getattr(model, "get_classifier", None)
    classifier: Any = tell() if callable(tell) else None
    if isinstance(classifier, Sequence):
        classifier = classifier[0] if classifier else None
    if not isinstance(classifier, nn.Module):
        return None
    path = path_of(model, classifier)
    if path is None:
        return None
    layers = _layers(model, path)
    return layers[-1] if layers else None


def _like(old: nn.Module, outputs: int) -> nn.Module:
    if isinstance(old, nn.Linear):
        return nn.Linear(old.in_features, outputs, bias=old.bias is not None)
    kind = nn.Conv2d if isinstance(old, nn.Conv2d) else nn.Conv1d
    keys = ("in_channels", "kernel_size", "stride", "padding", "dilation", "padding_mode")
    return kind(out_channels=outputs, bias=old.bias is not None, **{key: getattr(old, key) for key in keys})


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
