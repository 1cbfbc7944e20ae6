"""Tensors in nested values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of nested mappings, lists and tuples, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The tensors of nested tuples, lists, mappings and dataclasses changed; everything else as it is.

    What holds them keeps its type and is copied, not changed.
    """
    return change(value) if isinstance(value, Tensor) else rebuilt(lambda item: mapped(change, item), value)


def rebuilt(change: Callable[[Any], Any], value: Any, *, fresh: bool = False) -> Any:
    """A copy of a tuple, list, mapping or dataclass with its items changed; anything else as it is.

    Args:
        change: Gives what takes the place of an item.
        value: What holds the items.
        fresh: Make a copy also where no item is another.
    """
    items = _items(value)
    changed = {key: change(item) for key, item in items.items()}
    if not items or (not fresh and all(changed[key] is item for key, item in items.items())):
        return value
    kind = type(value)
    if isinstance(value, (tuple, list)):
        parts = list(changed.values())
        return parts if kind is list else kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    if kind is dict:
        return changed
    return _with(value, changed)


def _items(value: Any) -> dict[Any, Any]:
    """What a container holds, by place, key or name of the field; nothing for what is none."""
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, MutableMapping):
        return dict(value)
    if hasattr(type(value), "__dataclass_fields__"):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}


def _with(original: Any, items: dict[Any, Any]) -> Any:
    """A copy of a mapping (a defaultdict, one of the user's own) or a dataclass with other items."""
    clone = copy.copy(original)
    for key, item in items.items():
        if isinstance(original, MutableMapping):  # one by one: not all of them know `update`
            clone[key] = item
        else:  # past `frozen`, and without `replace`, which refuses fields that are not arguments
            object.__setattr__(clone, key, item)
    return clone
