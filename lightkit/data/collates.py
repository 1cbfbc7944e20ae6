"""How a list of samples becomes a batch: what PyTorch stacks, dataclasses too, and samples that are not alike."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from lightkit.common.modules import fields_of, rebuilt, shape_of, tensors


class _OfDataclass(type):
    """Makes `isinstance` true of the objects of dataclasses, as PyTorch looks classes of samples up by it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return fields_of(instance) is not None and not isinstance(instance, (Mapping, tuple, Tensor))


class AnyDataclass(metaclass=_OfDataclass):
    """Stands for all dataclasses."""


def _dataclass(samples: Sequence[Any], *, collate_fn_map: Any) -> Any:
    """Make a dataclass of batches of dataclasses, past `frozen` and fields that are no arguments."""
    made = copy.copy(samples[0])
    for name in fields_of(made) or {}:
        values = [getattr(sample, name) for sample in samples]
        object.__setattr__(made, name, collate(values, collate_fn_map=collate_fn_map))
    return made


def _stacked(samples: Sequence[Tensor], **options: Any) -> Any:
    first = samples[0]
    plain = first.layout == torch.strided and not first.is_nested
    return torch.stack(tuple(samples)) if plain else collate_tensor_fn(samples, **options)


WITH_DATACLASSES: dict[Any, Any] = {
    **default_collate_fn_map,
    AnyDataclass: _dataclass,
    type(None): lambda _samples, **_options: None,
}
"""How PyTorch makes a batch of each kind of value, and of dataclasses; what all samples lack is None."""
IN_OWN_MEMORY: dict[Any, Any] = {**WITH_DATACLASSES, Tensor: _stacked}
"""The same without memory that worker processes share."""


def listed(samples: Sequence[Any]) -> Any:
    """Make a batch of samples of unlike shapes: where a sample has a value, the batch has the list of them.

    Of samples `(image, {"boxes": …})` it makes `([image, …], [{"boxes": …}, …])`, as the detectors of torchvision take
    them; of dicts it makes a dict of lists, of anything else a list.

    Args:
        samples: Tuples or dicts with the same parts, or anything.
    """
    first = one_structure(samples, deep=False)[0]
    if isinstance(first, Mapping):
        return {name: [sample[name] for sample in samples] for name in first}
    return tuple(map(list, zip(*samples))) if isinstance(first, tuple) else list(samples)


def apart(batch: Any, size: int) -> list[Any]:
    """Take a batch of any kind apart, as far as it tells where its samples are.

    Args:
        batch: Nested values with the samples in dimension 0 of tensors, or with lists of a value for each sample.
        size: Its samples.
    """

    def of_sample(value: Any, at: int) -> Any:
        if isinstance(value, Tensor):
            return value[at] if value.ndim and len(value) == size else value
        if type(value) is list and len(value) == size:
            found = [*tensors(value)]
            if not found or not all(each.ndim and len(each) == size for each in found):
                return value[at]
        return rebuilt(lambda item: of_sample(item, at), value)

    return [of_sample(batch, at) for at in range(size)]


def one_structure(samples: Sequence[Any], *, deep: bool = True) -> Sequence[Any]:
    """Return samples that hold the same things.

    Args:
        samples: The samples of a batch.
        deep: Compare what their parts hold, too.

    Raises:
        ValueError: One has other names, another number of parts, or tensors of other dimensions.
    """
    first = _structure(samples[0], deep)
    if any(_structure(sample, deep) != first for sample in samples):
        raise ValueError("they do not hold the same things")
    return samples


def unlike(samples: Sequence[Any], pattern: Any) -> int | None:
    """Return the place of the first sample that holds other things than a pattern, or else things of other shapes.

    Args:
        samples: The samples of a batch.
        pattern: Another sample.

    Returns:
        The place among `samples`; None where all are like it.
    """
    for look in (_structure, shape_of):
        wanted = look(pattern)
        odd = next((at for at, sample in enumerate(samples) if look(sample) != wanted), None)
        if odd is not None:
            return odd
    return None


def _structure(value: Any, deep: bool = True) -> Any:
    """Return what a value holds: names, numbers of parts, dimensions and kinds, but no shapes."""
    if isinstance(value, (Tensor, np.ndarray)):
        return value.ndim
    if isinstance(value, (int, float, np.number)):
        return 0
    if isinstance(value, (tuple, list)):
        return [deep and _structure(item) for item in value]
    named = value if isinstance(value, Mapping) else fields_of(value)
    if named is not None:
        return {name: deep and _structure(item) for name, item in named.items()}
    return type(value)
