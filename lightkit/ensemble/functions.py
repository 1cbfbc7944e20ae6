"""Functions of `torch.nn.functional` in the forms that suit many models at once.

Shapes: M models, B samples of a batch, C classes, I inputs and O outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_BY_SAMPLE = {nn.Sequential, nn.Linear, nn.Identity, nn.Dropout, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU}
_BY_SAMPLE |= {nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid}
"""Modules that compute each sample by itself; other classes, without weights of their own, say so by `by_sample`."""


@contextmanager
def swapped(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let functions of `torch.nn.functional` be others inside.

    Args:
        functions: What takes their place, by name.
    """
    before = {name: getattr(F, name) for name in functions}
    for name, function in functions.items():
        setattr(F, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(F, name, function)


def cheap_cross_entropy() -> AbstractContextManager[None]:
    """Let `torch.nn.functional.cross_entropy` be a few plain operations inside.

    `vmap` would spell it out in Python at every call, in more operations, which give the same bits.
    """
    return swapped({"cross_entropy": _cross_entropy})


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the cross-entropy, by plain operations where it is the mean over classes that are given as numbers."""
    usual = weight is None and size_average is None and reduce is None and reduction == "mean" and not label_smoothing
    numbers = target.dtype == torch.int64 and input.dtype in (torch.float32, torch.float64)
    if not usual or not numbers or input.ndim < 2 or input.ndim != target.ndim + 1:
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": label_smoothing}
        return _CROSS_ENTROPY(input, target, weight, size_average, ignore_index, reduce, **options)
    counted = target != ignore_index
    picked = F.log_softmax(input, 1).gather(1, torch.where(counted, target, 0).unsqueeze(1)).squeeze(1)
    return torch.where(counted, picked, 0.0).sum() / -counted.sum()


def mean_cross_entropies(input: Tensor, target: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Compute the mean cross-entropy of the outputs `(M, B, C)` of each model; returns it, and how many targets count.

    A softmax over ten numbers each of many rows takes many times as long as over ten rows of many numbers.
    """
    weight = (target != ignored).sum(1)
    losses = F.nll_loss(F.log_softmax(input.mT, 1), target, ignore_index=ignored, reduction="none")
    return losses.sum(1) / weight, weight


def by_sample(network: nn.Module) -> str:
    """Tell how a network computes each sample by itself, where only linear layers have weights and nothing has hooks.

    Returns:
        `features`: along the last dimension, once it has flattened its inputs; `samples`; or nothing where it does not.
    """

    def says(part: nn.Module) -> str:
        own = {"weight", "bias"} if type(part) is nn.Linear else set()  # a class derived from one may do more
        plain = {*part._parameters, *part._buffers} <= own and not (part._forward_hooks or part._forward_pre_hooks)
        known = "features" if type(part) in _BY_SAMPLE else vars(type(part)).get("by_sample")
        return ("features" if known == "features" else "samples") if plain and known else ""

    ways = [says(part) for part in network.modules()]
    inside = all(type(part) in _BY_SAMPLE for part in network.modules() if part is not network)
    return (ways[0] if inside else "samples") if all(ways) else ""


def linears(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute linear layers `(M, O, I)` of many models, each on its own stretch of the samples."""
    rows = input.reshape(len(weight), -1, input.shape[-1])
    return linears_of_features(rows, weight, bias).reshape(*input.shape[:-1], -1)


def linears_of_features(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, shared: bool = False) -> Tensor:
    """Compute linear layers `(M, O, I)` of many models, `(M, B, O)`, which lie in memory as `(M, O, B)`.

    Args:
        input: Features `(M, B, I)`; before the first layer `(M·B, I)`, or `(B, I)` where they are shared.
        weight: The weights.
        bias: What is added, `(M, O)`.
        shared: Whether the features before the first layer are those of all models.
    """
    if input.ndim == 2:
        input = input.expand(len(weight), *input.shape) if shared else input.reshape(len(weight), -1, input.shape[-1])
    return (weight @ input.mT if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, input.mT)).mT


_CROSS_ENTROPY = F.cross_entropy
