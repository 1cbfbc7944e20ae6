"""Fingerprints of tensors: whether a single bit of them changed, without keeping a copy.

A tensor's bits are read as whole numbers x_i of at most 32 bits, and two sums of w_i x_i modulo 2^64 are kept, with
weights w_i that look random. The weights are odd, so a change of one element always shows; any other change goes unseen
with a probability below 2^-60. Equal bits always give equal sums, NaN included, in whatever order a device adds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from lightkit.common.modules import part

# 64-bit elements count as two: of two flipped top bits of 64 nothing would be left in a sum modulo 2^64.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
# Constants of splitmix64 (https://doi.org/10.1145/2714064.2660195) as signed numbers.
_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


def fingerprint(tensor: Tensor) -> Tensor:
    """Compute two sums over the bits of a tensor.

    Args:
        tensor: Of any type, shape and layout in memory; small temporary tensors are made, no copy of a dense one. Of a
            tensor that processes share out, the part of this one counts.

    Returns:
        Shape (2,), int64, on the device of the tensor, which is not waited for.
    """
    own = part(tensor.detach())
    if own.layout is not torch.strided:
        own = own.to_dense()
    if own.is_complex():
        own = torch.view_as_real(own.resolve_conj())
    if own.ndim > 1 and not own.is_contiguous():  # in the order of memory it can be read without a copy
        own = own.permute(sorted(range(own.ndim), key=own.stride, reverse=True))
    return _sums(own.resolve_neg().reshape(1, -1))[0]


def row_fingerprints(tensor: Tensor) -> Tensor:
    """Compute the fingerprint of each row of a stack of real, dense tensors `(M, ...)`; see `fingerprint`.

    Returns:
        Shape (M, 2), int64. That of a row does not depend on the others.
    """
    return _sums(tensor.detach().reshape(len(tensor), math.prod(tensor.shape[1:])).contiguous())


def _sums(rows: Tensor) -> Tensor:
    """Compute two sums over the bits of each row: of `(M, N)` numbers `(M, 2)`."""
    weights, found = _weights(rows.device), list[Tensor]()
    integers = rows.view(_INTEGERS[rows.element_size()])
    for block in integers.split(max(1, weights.shape[1] // max(1, integers.shape[1]))):
        total = torch.zeros(2, len(block), dtype=torch.int64, device=rows.device)
        for piece in block.split(weights.shape[1], dim=1):
            total = total * _GOLDEN + (weights[:, None, : piece.shape[1]] * piece.to(torch.int64)).sum(2)
        found.append(total)
    return torch.cat(found, 1).T


class Fingerprints:
    """Fingerprints of named tensors at one moment.

    Args:
        tensors: The tensors by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._layouts = {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in tensors.items()}
        self._sums = {name: fingerprint(tensor) for name, tensor in tensors.items()}

    def values(self) -> dict[str, tuple[int, ...]]:
        """Return the sums of each tensor as numbers; waits once for every device."""
        found: dict[str, tuple[int, ...]] = {}
        for device in {layout[2] for layout in self._layouts.values()}:
            names = [name for name, layout in self._layouts.items() if layout[2] == device]
            sums = torch.stack([self._sums[name] for name in names]).tolist()
            found |= {name: tuple(values) for name, values in zip(names, sums)}
        return found

    def changed(self, now: Fingerprints) -> set[str]:
        """Return the names of the tensors in both that are not the same bits; waits once for every device."""
        common = [name for name in self._layouts if name in now._layouts]
        same = [name for name in common if self._layouts[name] == now._layouts[name]]
        found = set(common) - set(same)
        for device in {self._layouts[name][2] for name in same}:
            names = [name for name in same if self._layouts[name][2] == device]
            before = torch.stack([self._sums[name] for name in names])
            after = torch.stack([now._sums[name] for name in names])
            found |= {name for name, differs in zip(names, (before != after).any(1).tolist()) if differs}
        return found


@lru_cache(maxsize=16)
def _weights(device: torch.device) -> Tensor:
    """Return odd numbers that look random, shape (2, chunk): on a CPU as many as its cache holds."""
    chunk = 1 << (16 if device.type == "cpu" else 20)
    x = torch.arange(1, 2 * chunk + 1, dtype=torch.int64, device=device) * _GOLDEN
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return ((x ^ (x >> 31)) | 1).view(2, chunk)
