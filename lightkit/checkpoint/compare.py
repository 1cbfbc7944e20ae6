"""What two states differ in, tensor by tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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


def leaves(value: Any, key: str = "", without: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield nested dicts, lists and tuples as pairs of a key path, `optimizer.state.head.weight.exp_avg`, and a value.

    Args:
        value: Dicts, lists, and what is in them.
        key: What leads to it.
        without: Names of values to leave out, and beginnings of names that end with `/`.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name not in without and not str(name).startswith(tuple(each for each in without if each[-1] == "/")):
                yield from leaves(item, f"{key}.{name}" if key else str(name), without)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{key}[{index}]", without)
    else:
        yield key, value


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """List the entries that differ in name, shape, type or a single bit, in the order of the first.

    Args:
        first: Tensors and plain values by name.
        second: The same.
    """
    names = [*first, *(name for name in second if name not in first)]
    differences = (_difference(name, first, second) for name in names)
    return [difference for difference in differences if difference is not None]


def _difference(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference | None:
    if name not in second:
        return Difference(name, "only in the first", in_words(first[name]), "")
    if name not in first:
        return Difference(name, "only in the second", "", in_words(second[name]))
    one, other = first[name], second[name]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _tensors(name, one, other)
    if type(one) is not type(other):
        return Difference(name, "type", in_words(one), in_words(other))
    is_nan = isinstance(one, float) and one != one and other != other
    return None if one == other or is_nan else Difference(name, "values", in_words(one), in_words(other))


def _tensors(name: str, one: torch.Tensor, other: torch.Tensor) -> Difference | None:
    texts = (in_words(one), in_words(other))
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


def shape_text(shape: Iterable[int]) -> str:
    """Write the shape of a tensor as `2×3`."""
    return "×".join(map(str, shape)) or "single"


def format_text(tensor: torch.Tensor) -> str:
    """Write the number format of a tensor as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def in_words(value: Any) -> str:
    """Write shape and format of a tensor, or any other value in a few letters."""
    if isinstance(value, torch.Tensor):
        return f"{shape_text(value.shape)} {format_text(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def listed(lines: Sequence[str], limit: int = 20) -> str:
    """Indent lines, each on one of its own, at most `limit` of them."""
    more = [f"    … and {len(lines) - limit} more"] if len(lines) > limit else []
    return "".join(f"\n{line}" for line in [*(f"    {line}" for line in lines[:limit]), *more])
