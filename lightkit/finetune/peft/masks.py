"""Sequences with learnt positions in front: what else a module is told of the positions grows with them.

Every position of the sequence sees the learnt ones; these see each other but not the sequence where a mask says who
sees whom, so that nothing of later positions gets round a causal mask. The learnt positions have no place in the order:
tables of rotary positions don't rotate them, and the sequence is counted as before.

Shapes: B samples, N positions, S positions of the memory, L learnt positions, H heads, K features of a
head, D features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.finetune.peft.calls import Call


def check_sequence(x: Any, what: str) -> Tensor:
    """Return `x`, which has to be a sequence of vectors or a batch of them.

    Args:
        x: The input of a module.
        what: What is to be put in front of it, for errors.

    Raises:
        UserError: It is something else.
    """
    if torch.is_tensor(x) and x.dim() in (2, 3):
        return x
    received = tuple(x.shape) if torch.is_tensor(x) else type(x).__name__
    # The key is named here, as no caller of a forward pass knows it.
    raise UserError(f"{what} needs a sequence", key="finetune.prefix.match", expected="(B, N, D)", received=received)


def prepend(tokens: Tensor, x: Tensor, axis: int) -> Tensor:
    """Put the same positions in front of the sequence of every sample.

    Args:
        tokens: `(L, D)`.
        x: `(B, N, D)`, or `(N, B, D)` with axis 0, or `(N, D)`.
        axis: Which dimension of a batch holds the positions, -2 or 0.
    """
    tokens = tokens.to(x.dtype)
    if x.dim() == 2:
        return torch.cat([tokens, x])
    tokens = tokens.unsqueeze(1).expand(-1, x.shape[1], -1) if axis == 0 else tokens.expand(*x.shape[:-2], -1, -1)
    return torch.cat([tokens, x], dim=axis)


def extend_masks(args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...], length: int) -> Call:
    """Extend masks and tables of positions among the arguments of a call by L learnt positions in front.

    Args:
        args: Positional arguments.
        kwargs: Named arguments.
        names: Of the arguments, in order.
        length: L.
    """
    given = dict(zip(names, args)) | kwargs
    new: dict[str, Any] = {
        name: extend(given[name], length) for name, extend in _EXTEND.items() if torch.is_tensor(given.get(name))
    }
    if isinstance(given.get("position_embeddings"), tuple):
        new["position_embeddings"] = tuple(  # cosines and sines (..., N, K): learnt positions are not rotated
            F.pad(table, (0, 0, length, 0), value=1.0 - index)
            for index, table in enumerate(given["position_embeddings"])
        )
    # The hints speak of a square causal mask and would take the place of the one that is now given.
    new |= {hint: False for hint, masks in _HINTS.items() if given.get(hint) and any(name in new for name in masks)}
    positional = tuple(new.get(name, value) for name, value in zip(names, args))
    return positional + args[len(names) :], {name: new.get(name, value) for name, value in kwargs.items()}


def _extend_keep_mask(mask: Tensor, length: int) -> Tensor:
    """Extend a mask `(..., N, N)` or `(..., 1, N)` in which true, or 0 added, lets attend, as in timm."""
    is_bool = mask.dtype == torch.bool
    return _extend_square(mask, length, keep=float(is_bool), hide=0.0 if is_bool else float("-inf"))


def _extend_hide_mask(mask: Tensor, length: int) -> Tensor:
    """Extend a mask `(N, N)` or `(B * H, N, N)` in which true, or -inf added, hides, as in the layers of PyTorch."""
    return _extend_square(mask, length, keep=0.0, hide=1.0 if mask.dtype == torch.bool else float("-inf"))


def _extend_square(mask: Tensor, length: int, *, keep: float, hide: float) -> Tensor:
    rows = F.pad(mask, (length, 0), value=keep)
    if mask.shape[-2] != mask.shape[-1]:
        return rows
    new = F.pad(mask.new_full((*mask.shape[:-2], length, length), keep), (0, mask.shape[-1]), value=hide)
    return torch.cat([new, rows], dim=-2)


def _extend_padding_mask(mask: Tensor, length: int) -> Tensor:
    """Extend a mask `(B, N)` or `(N)`: learnt positions are no padding."""
    return F.pad(mask, (length, 0))


def _extend_memory_mask(mask: Tensor, length: int) -> Tensor:
    """Extend a mask `(N, S)` or `(B * H, N, S)`: learnt positions see all of the memory."""
    return F.pad(mask, (0, 0, length, 0))


def _extend_rotary_table(table: Tensor, length: int) -> Tensor:
    """Extend cosines and sines `(2, N, K)`: learnt positions are not rotated."""
    zeros = table.new_zeros(length, table.shape[-1])
    return torch.cat([torch.stack([zeros + 1, zeros]), table], dim=1)


_EXTEND: dict[str, Callable[[Tensor, int], Tensor]] = {
    "attn_mask": _extend_keep_mask,
    "attention_mask": _extend_keep_mask,
    "rotary": _extend_rotary_table,
    "mask": _extend_hide_mask,
    "src_mask": _extend_hide_mask,
    "tgt_mask": _extend_hide_mask,
    "src_key_padding_mask": _extend_padding_mask,
    "tgt_key_padding_mask": _extend_padding_mask,
    "memory_mask": _extend_memory_mask,
}
"""What grows, by name of the argument in lightkit, timm, transformers, and `nn.TransformerEncoder` and the like."""
_HINTS = {"is_causal": ("mask", "src_mask"), "tgt_is_causal": ("tgt_mask",)}
