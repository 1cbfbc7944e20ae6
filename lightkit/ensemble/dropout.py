"""Dropout of many models that are computed at once by `torch.func.vmap`.

Each model gets the masks that it draws alone. What `vmap` draws by itself is random in another way, so the masks are
drawn outside of it, in the order in which a model alone calls for them, and handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_WHOLE_CHANNELS = {"dropout1d": 3, "dropout2d": 4, "dropout3d": 5}
"""Functions that drop whole channels, and the dimensions of their inputs."""
_PLAIN: dict[str, Callable[..., Any]] = {
    name: getattr(F, name) for name in ("dropout", *_WHOLE_CHANNELS, "scaled_dot_product_attention")
}


class Draw(NamedTuple):
    """One call for a mask."""

    function: str
    """Which of `torch.nn.functional`'s it is."""
    shape: tuple[int, ...]
    """Shape of the mask for one model."""
    stride: tuple[int, ...]
    """How it lies in memory, which decides about the order of its random numbers."""
    dtype: torch.dtype
    """Its number format."""
    probability: float
    """Share of elements that are dropped."""


@contextmanager
def layer_by_layer() -> Iterator[None]:
    """Let `torch.nn.TransformerEncoderLayer` and its like call their layers one by one inside.

    In evaluation they would call one kernel for all of it, which `vmap` cannot compute.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def recorded(draws: list[Draw]) -> Iterator[None]:
    """Note the calls for masks that a model makes inside, which computes without dropout meanwhile.

    Args:
        draws: Gets the calls, in their order.
    """

    def note(name: str, like: Tensor, probability: float) -> Tensor:
        empty = torch.empty_like(like)
        draws.append(Draw(name, tuple(like.shape), tuple(empty.stride()), like.dtype, probability))
        return torch.ones_like(like)

    with _masked(note):
        yield


@contextmanager
def replayed(masks: Sequence[Tensor]) -> Iterator[None]:
    """Let a model use these masks inside, in the order in which it calls for them."""
    left = iter(masks)
    with _masked(lambda name, like, probability: next(left)):
        yield


def drawn(draws: Sequence[Draw], seeds: Sequence[Callable[[], None]], device: torch.device) -> tuple[Tensor, ...]:
    """Draw the masks of many models, scaled by what they keep, `(M, ...)` each.

    Args:
        draws: What a model calls for.
        seeds: Seeds the generators for each model.
        device: Where the models compute.
    """
    count = len(seeds)
    masks = [
        torch.empty_strided(
            (count, *draw.shape),
            (1 + sum((size - 1) * step for size, step in zip(draw.shape, draw.stride)), *draw.stride),
            dtype=draw.dtype,
            device=device,
        )
        for draw in draws
    ]
    rows = [mask.unbind(0) for mask in masks]
    for model, seed in enumerate(seeds):
        seed()
        for draw, own in zip(draws, rows):
            if device.type == "cpu" or draw.function in _WHOLE_CHANNELS:
                own[model].bernoulli_(1.0 - draw.probability)
            else:  # one kernel draws and scales there, and consumes other numbers
                own[model].copy_(_PLAIN["dropout"](torch.ones_like(own[model]), draw.probability) != 0)
    return tuple(mask.div_(1.0 - draw.probability) for mask, draw in zip(masks, draws))


@contextmanager
def _masked(mask: Callable[[str, Tensor, float], Tensor]) -> Iterator[None]:
    """Let the functions of `torch.nn.functional` that drop something ask for their mask.

    Args:
        mask: Called with the name of the function, a tensor like the mask, and the share to drop.
    """

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _attention(mask, query, key, value, *args, **kwargs)

    for name in _PLAIN:
        setattr(F, name, _dropping(name, mask))
    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        for name, function in _PLAIN.items():
            setattr(F, name, function)


def _dropping(name: str, mask: Callable[[str, Tensor, float], Tensor]) -> Callable[..., Tensor]:
    """Make a function that takes the place of one that drops elements or channels."""

    def drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        of_channels = name in _WHOLE_CHANNELS
        if not training or p in (0.0, 1.0) or (of_channels and input.ndim != _WHOLE_CHANNELS[name]):
            plain: Tensor = _PLAIN[name](input, p, training)
            return plain
        channels = (
            input.flatten(2)[:, :, :1].reshape(*input.shape[:2], *[1] * (input.ndim - 2)) if of_channels else input
        )
        return input * mask(name, channels, p)

    return drop


def _attention(
    mask: Callable[[str, Tensor, float], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention step by step, as PyTorch does where it has no kernel for all of it; `vmap` has none."""
    if enable_gqa:
        options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        found: Tensor = _PLAIN["scaled_dot_product_attention"](query, key, value, attn_mask, dropout_p, **options)
        return found
    root = math.sqrt(scale if scale is not None else 1.0 / math.sqrt(query.shape[-1]))
    scores = (query * root) @ (key * root).transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if hidden else scores + attn_mask
    weights = scores.softmax(-1)
    if dropout_p:
        weights = weights * mask("scaled_dot_product_attention", weights, dropout_p)
    return weights @ value
