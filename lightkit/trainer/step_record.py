"""How often an optimizer steps, and over which gradients: listened to for a while, or by its own count."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightkit.common.shards import part


def counted_steps(optimizer: Optimizer) -> int | None:
    """Return how many steps an optimizer says it has taken; None where it does not count, or has taken none."""
    holders = [*optimizer.state.values(), *optimizer.param_groups]
    counts = [values["step"] for values in holders if isinstance(values, dict) and "step" in values]
    plain = [int(count) for count in counts if not isinstance(count, Tensor)]
    on_devices: dict[torch.device, list[Tensor]] = {}
    for count in counts:
        if isinstance(count, Tensor):
            on_devices.setdefault(count.device, []).append(count.reshape(()))
    plain += [int(torch.stack(several).max()) for several in on_devices.values()]  # waits once for each device
    return max(plain, default=None)


class StepRecord:
    """What an optimizer does from here to `end`: how often it steps, and over which gradients.

    A class of one's own may call the `step` of its base in its own, so calls are counted by how deep they are.

    Args:
        optimizer: It calls its hooks; the numbers of its steps stay the same.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        for kind in type(optimizer).__mro__:
            # PyTorch lets the methods of a class call hooks when it makes one of that class, not of one below it.
            if "step" in vars(kind) and issubclass(kind, Optimizer) and not getattr(kind.step, "hooked", False):
                kind.__new__(kind)._patch_step_function()
        self.gradients: dict[int, Tensor] = {}
        """Largest absolute value of each gradient of the first step, by the `id` of its parameter."""
        self._depth, self._calls = 0, Counter[int]()
        self._handles = [
            optimizer.register_step_pre_hook(self._enter),
            optimizer.register_step_post_hook(self._leave),
        ]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return max(self._calls.values(), default=0)

    def end(self) -> None:
        """Listen no longer."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, optimizer: Optimizer, *_call: Any) -> None:
        if not self._calls:
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            own = {id(p): _dense(part(p.grad)) for p in parameters}
            filled = {number: gradient for number, gradient in own.items() if gradient.numel()}
            norms = torch._foreach_norm(list(filled.values()), float("inf")) if filled else []
            self.gradients = dict(zip(filled, norms))
        self._depth += 1
        self._calls[self._depth] += 1

    def _leave(self, *_call: Any) -> None:
        self._depth -= 1


def _dense(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient that an embedding may have left sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
