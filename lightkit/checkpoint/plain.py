"""The types a checkpoint may hold: tensors, and what plain JSON could hold too.

Anything else would need its own code to be loaded again, which `torch.load(weights_only=True)` rightly refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_SCALARS = frozenset({type(None), bool, int, float, str})
_KEYS = frozenset({str, int})

Take = Callable[[torch.Tensor, str], torch.Tensor]
"""What becomes of a detached tensor; the text is its key path."""


def compact(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """Return the tensor itself, or a copy of it where it is part of a larger storage."""
    if tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
        return tensor.clone()  # torch.save writes the whole storage, also for a view of ten rows
    return tensor


def to_plain(value: Any, *, where: str = "checkpoint", take: Take = compact) -> Any:
    """Copy nested content with bare tensors: detached, and without the unused rest of a larger storage.

    The tensors share memory with the originals where they can.

    Args:
        value: Nested dicts, lists and tuples of tensors and plain values.
        where: Name of `value` in error messages.
        take: Called with every detached tensor and its key path; its result takes the tensor's place.

    Raises:
        TypeError: Something of another type is in it; the message names its key path.
    """
    kind = type(value)
    if kind in _SCALARS or (kind is bytes and value):  # torch.load refuses a file with empty ones
        return value
    if isinstance(value, torch.Tensor):
        if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise TypeError(f"{where} is a {kind.__name__}; convert it to a plain tensor in `state_dict()`")
        return take(value.detach(), where)
    # Most items are numbers and text: asked for here, as a call and a key path for each would be most of the work.
    if isinstance(value, dict) and kind.__name__ in ("dict", "OrderedDict"):
        return {
            key if type(key) in _KEYS else _refuse_key(key, where): item
            if type(item) in _SCALARS
            else to_plain(item, where=f"{where}.{key}", take=take)
            for key, item in value.items()
        }
    if kind in (list, tuple):
        return kind(
            item if type(item) in _SCALARS else to_plain(item, where=f"{where}[{index}]", take=take)
            for index, item in enumerate(value)
        )
    if kind is bytes:
        raise TypeError(f"{where} is empty bytes, which torch.load refuses; save None or text in `state_dict()`")
    raise TypeError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint holds tensors, numbers, text, lists, tuples "
        "and dicts only: convert it in `state_dict()`"
    )


def _refuse_key(key: Any, where: str) -> Any:
    raise TypeError(f"{where} has the key {key!r} of type {type(key).__qualname__}; keys are text or whole numbers")
