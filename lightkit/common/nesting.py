"""Tensors in nested values."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def tensors(value: Any) -> Iterator[Tensor]:
    """Return the tensors of nested mappings, lists and tuples, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Change the tensors of nested tuples, lists, mappings and dataclasses; everything else stays as it is.

    What holds them keeps its type and is copied, not changed.
    """
    return change(value) if isinstance(value, Tensor) else rebuilt(lambda item: mapped(change, item), value)


def rebuilt(change: Callable[[Any], Any], value: Any, *, fresh: bool = False) -> Any:
    """Copy a tuple, list, mapping or dataclass with its items changed; anything else is returned as it is.

    Args:
        change: Gives what takes the place of an item.
        value: What holds the items.
        fresh: Copy mappings of one's own, and dataclasses, also where no item is another.
    """
    kind = type(value)
    if isinstance(value, (tuple, list)):
        parts = [change(item) for item in value]
        return parts if kind is list else kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    if kind in (dict, OrderedDict):
        items = {key: change(item) for key, item in value.items()}
        return items if kind is dict else OrderedDict(items)
    # A mapping or dataclass of somebody's own may be more than its items.
    is_mapping = isinstance(value, MutableMapping)
    if not is_mapping and not hasattr(kind, "__dataclass_fields__"):
        return value
    names = list(value) if is_mapping else [field.name for field in dataclasses.fields(value)]
    before = {name: value[name] if is_mapping else getattr(value, name) for name in names}
    changed = {name: change(item) for name, item in before.items()}
    if not fresh and all(changed[name] is item for name, item in before.items()):
        return value
    clone = copy.copy(value)
    for name, item in changed.items():
        if is_mapping:  # one by one: not all of them know `update`
            clone[name] = item
        else:  # past `frozen`, and without `replace`, which refuses fields that are not arguments
            object.__setattr__(clone, name, item)
    return clone


def shape_of(value: Any) -> str:
    """Say what a value of any kind consists of: `{image: (3, 8, 8) float32, age: () int64}`."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shape_of(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(shape_of, value)) + ")"
    return type(value).__name__
