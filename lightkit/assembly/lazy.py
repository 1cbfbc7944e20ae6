"""Layers that take their sizes from the first batch (`LazyLinear`, `LazyConv2d`): they get them when they are built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.common.modules import has_statistics
from lightkit.finetune.tracing import Forward


def build_sized(make: Callable[[], nn.Module], forwards: Sequence[Forward]) -> nn.Module:
    """Build a model, and run it on a sample if it has lazy layers, which get their sizes and first values by that.

    The values are drawn with the random numbers that follow those of the building. The model is built anew for each
    try: in eval mode, and then, for layers that only run in training, in training mode without new statistics.

    Args:
        make: Builds the model with its own random numbers.
        forwards: Ways to run it on a sample of the size that it will be trained with.

    Raises:
        UserError: There are lazy layers, and no such way gives all of them their sizes.
    """
    model = make()
    left = _lazy_layers(model)
    if not left:
        return model
    why, ran, mode = "" if forwards else "no sample of the inputs is known", False, model.training
    for training, forward in product((False, True), forwards):
        model = make()
        for module in model.modules():
            module.training = training and not has_statistics(module)
        try:
            with torch.no_grad():
                forward(model)
        except Exception as error:  # whatever a network may raise on inputs that are not its own
            why = why or f"a forward pass fails: {in_short(error)}"
            continue
        ran, left = True, _lazy_layers(model)
        if not left:
            return model.train(mode)
    raise UserError(
        f"layers without sizes do not get them from a batch: {'no forward pass uses them' if ran else why}",
        key="model",
        received=", ".join(left[:5]),
        expected="a forward pass that uses every lazy layer",
        fix="give these layers their sizes, or take out those that are not used",
        family="model-misfit",
    )


def _lazy_layers(model: nn.Module) -> list[str]:
    """Return the paths of the layers that have no sizes yet."""
    return [
        path or type(module).__name__
        for path, module in model.named_modules()
        if any(map(nn.parameter.is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False))))
    ]
