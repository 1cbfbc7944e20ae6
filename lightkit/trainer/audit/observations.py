"""What an audit reads of tensors without changing anything: fingerprints, gradients, and the steps of an optimizer.

A fingerprint tells whether a single bit changed, without keeping a copy. A tensor's bits are read as whole numbers x_i
of at most 32 bits, and two sums of w_i x_i modulo 2^64 are kept, with weights w_i that look random. The weights are
odd, so a change of one element always shows; any other change goes unseen with a probability below 2^-60. Equal bits
always give equal sums, NaN included, in whatever order a device adds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

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
        total: Any = 0
        for piece in block.split(weights.shape[1], dim=1):
            total = total * _GOLDEN + (weights[:, None, : piece.shape[1]] * piece.to(torch.int64)).sum(2)
        found.append(total)
    return (torch.cat(found, 1) if len(found) > 1 else found[0]).T


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


class GradientListener:
    """Listens to parameters until each has had a gradient that is finite and not zero everywhere.

    Of one that processes share out, the part of this process is looked at. On a CPU each gradient is looked at as it
    comes. On other devices its largest element stays there until `read` asks for it.

    Args:
        parameters: The parameters to listen to, by name; all of them need gradients.
    """

    AT_ONCE = ("cpu",)
    """Devices that are not waited for."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.nonzero: set[str] = set()
        """Names of those that had such a gradient, as far as it is known."""
        self.seen: set[str] = set()
        """Names of those that had any gradient."""
        self.largest: dict[str, float] = {}
        """Largest element of the first such gradient of each that had one."""
        self.nonfinite = False
        """Whether a gradient was not finite."""
        self._range: dict[str, tuple[Tensor, Tensor]] = {}
        """Highest and lowest of the largest elements that are not on the host yet; -1 stands for one not finite."""
        self._handles: dict[str, RemovableHandle] = {}
        for name, parameter in parameters.items():
            self._handles[name] = parameter.register_post_accumulate_grad_hook(partial(self._look, name))

    def read(self) -> None:
        """Bring what is known up to date; waits once for every device with news."""
        for device in {high.device for high, _ in self._range.values()}:
            names = [name for name, (high, _) in self._range.items() if high.device == device]
            values = torch.stack([torch.stack(self._range.pop(name)) for name in names]).tolist()
            for name, (high, low) in zip(names, values):
                self._take(name, high)
                self.nonfinite |= low < 0.0

    def close(self) -> None:
        """Stop listening."""
        while self._handles:
            self._handles.popitem()[1].remove()

    def _look(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        self.seen.add(name)
        values = _values(parameter)
        if not values.numel():
            return
        largest = torch.linalg.vector_norm(values, math.inf).nan_to_num(nan=-1.0, posinf=-1.0).float()
        if largest.device.type in self.AT_ONCE:
            self._take(name, largest.item())
        else:
            high, low = self._range.get(name, (largest, largest))
            self._range[name] = torch.maximum(high, largest), torch.minimum(low, largest)

    def _take(self, name: str, largest: float) -> None:
        self.nonfinite |= largest < 0.0
        if largest > 0.0 and name in self._handles:
            self.nonzero.add(name)
            self.largest[name] = largest
            self._handles.pop(name).remove()


def largest(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the largest absolute value of each gradient."""
    return torch._foreach_norm(list(gradients), float("inf")) if gradients else ()


class StepRecord:
    """Counts the steps that an optimizer takes, whoever asks for them; keeps what the gradients of a step were.

    A class of one's own may call the `step` of its base in its own, so calls are counted by how deep they are.

    Args:
        optimizer: It calls its hooks; the numbers of its steps stay the same.
        largest: Computes what is kept of gradients, none of which is empty.
    """

    def __init__(self, optimizer: Optimizer, largest: Callable[[Sequence[Tensor]], Sequence[Tensor]] = largest) -> None:
        for kind in type(optimizer).__mro__:
            # PyTorch lets the methods of a class call hooks when it makes one of that class, not of one below it.
            if "step" in vars(kind) and issubclass(kind, Optimizer) and not getattr(kind.step, "hooked", False):
                kind.__new__(kind)._patch_step_function()
        self.gradients: dict[int, Tensor] | None = None
        """What `largest` made of the gradients of a step, by the `id` of their parameters; None without such a step."""
        self._largest, self._listens = largest, False
        self._depth, self._calls = 0, Counter[int]()
        optimizer.register_step_pre_hook(self._enter)
        optimizer.register_step_post_hook(self._leave)

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return max(self._calls.values(), default=0)

    def listen(self) -> None:
        """Keep the gradients of the next step."""
        self.gradients, self._listens = None, True

    def _enter(self, optimizer: Optimizer, *_call: Any) -> None:
        if self._listens:
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            own = {id(p): _values(p) for p in parameters}
            filled = {number: gradient for number, gradient in own.items() if gradient.numel()}
            self.gradients, self._listens = dict(zip(filled, self._largest(list(filled.values())))), False
        self._depth += 1
        self._calls[self._depth] += 1

    def _leave(self, *_call: Any) -> None:
        self._depth -= 1


def _values(parameter: Any) -> Tensor:
    """Return what this process holds of a gradient, which an embedding may have left sparse."""
    gradient: Tensor = part(parameter.grad.detach())
    return gradient.coalesce().values() if gradient.is_sparse else gradient
