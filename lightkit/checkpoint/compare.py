"""What two states differ in, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Difference:
    """One entry that is not the same on both sides."""

    name: str
    """Name of the tensor, or key path of another value."""
    what: str
    """`only in the first`, `only in the second`, `shape`, `type`, `values`, or `bits` where they differ in the sign of
    a zero or the kind of NaN only."""
    first: str
    """Shape and type, or the value, on the first side; empty where it is missing."""
    second: str
    """The same of the second side."""
    largest: float | None = None
    """Largest absolute difference of two elements; NaN where one side is NaN and the other is not."""
    count: int | None = None
    """Number of elements that differ."""


def flat(value: Any, where: str = "") -> dict[str, Any]:
    """Flatten nested dicts, lists and tuples by key path: `optimizer.state.head.weight.exp_avg`."""
    if isinstance(value, Mapping):
        pairs = [(f"{where}.{key}" if where else str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(f"{where}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {where: value}
    return {name: leaf for path, item in pairs for name, leaf in flat(item, path).items()}


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """List the entries that differ in name, shape, type or a single bit, in the order of the first.

    Args:
        first: Tensors and plain values by name.
        second: The same.
    """
    names = [*first, *(name for name in second if name not in first)]
    found = (_difference(name, first, second) for name in names)
    return [difference for difference in found if difference is not None]


def _difference(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference | None:
    if name not in second:
        return Difference(name, "only in the first", _text(first[name]), "")
    if name not in first:
        return Difference(name, "only in the second", "", _text(second[name]))
    one, other = first[name], second[name]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _tensors(name, one, other)
    if type(one) is not type(other):
        return Difference(name, "type", _text(one), _text(other))
    is_nan = isinstance(one, float) and one != one and other != other
    return None if one == other or is_nan else Difference(name, "values", _text(one), _text(other))


def _tensors(name: str, one: torch.Tensor, other: torch.Tensor) -> Difference | None:
    texts = (_text(one), _text(other))
    if one.shape != other.shape:
        return Difference(name, "shape", *texts)
    if one.dtype != other.dtype:
        return Difference(name, "type", *texts)
    if torch.equal(bits(one), bits(other)):
        return None
    one, other = _wide(one), _wide(other)
    same = (one == other) | (torch.isnan(one) & torch.isnan(other))
    gaps = (one - other).abs().masked_fill(same, 0.0)
    count = int((gaps != 0).sum())
    return Difference(name, "values" if count else "bits", *texts, largest=float(gaps.max()), count=count)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in host memory, row by row whatever its strides."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors have one shape, one type and the same bits, on whatever devices."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.equal(bits(one), bits(other))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{'×'.join(map(str, value.shape)) or 'single'} {str(value.dtype).removeprefix('torch.')}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
