"""Which gradients reach what trains, and how many steps an optimizer takes: hooks that change nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lightkit.common.modules import part


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
