"""How often an optimizer steps, and over which gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightkit.common.shards import part


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
            own = {id(p): _dense(part(p.grad)) for p in parameters}
            filled = {number: gradient for number, gradient in own.items() if gradient.numel()}
            self.gradients, self._listens = dict(zip(filled, self._largest(list(filled.values())))), False
        self._depth += 1
        self._calls[self._depth] += 1

    def _leave(self, *_call: Any) -> None:
        self._depth -= 1


def _dense(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient that an embedding may have left sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
