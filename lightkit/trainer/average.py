"""Averages of the weights over the steps of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.modules import is_shard, like


class NoAverage:
    """The plain case: the newest weights are the ones to evaluate."""

    def update(self) -> None:
        """Take in the weights after an optimizer step."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model hold the weights to evaluate, while inside."""
        yield

    def keep(self) -> None:
        """Put the weights to evaluate into the model for good."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what a checkpoint kept."""


class Ema(NoAverage):
    """Exponential moving average of parameters and floating-point buffers (Polyak and Juditsky 1992).

    After n steps the share kept is `min(decay, (1 + n) / (10 + n))`, so that the first, random weights fade quickly.

    Args:
        model: The network whose weights are averaged, without any wrapper.
        decay: Share of the average kept at each step, in (0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._live = {
            name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if tensor.is_floating_point()
        }
        # In fp32 at least: what a step adds is less than bfloat16 can hold beside the average.
        self._mean = {name: _wide(tensor.detach()).clone() for name, tensor in self._live.items()}
        # Where processes hold parts of the parameters, buffers are whole, and no operation takes both.
        sorts = [[name for name in self._live if is_shard(self._live[name]) == part] for part in (False, True)]
        self._alike = [names for names in sorts if names]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights of the model."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for names in self._alike:
            means, live = [self._mean[name] for name in names], [_wide(self._live[name].detach()) for name in names]
            torch._foreach_lerp_(means, live, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model hold the averaged weights, while inside; its own come back afterwards, also after an error."""
        own = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        _copy(self._mean, self._live)
        try:
            yield
        finally:
            _copy(own, self._live)

    def keep(self) -> None:
        """Put the averaged weights into the model for good."""
        _copy(self._mean, self._live)

    def keep_rows(self, rows: Tensor) -> None:
        """Leave out of stacked tensors `(M, ...)` all models but these, `(K,)` int64; the model has done so before."""
        self._mean = {name: mean.index_select(0, rows) for name, mean in self._mean.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged tensors by name and the number of steps."""
        return {"steps": self.steps, "weights": dict(self._mean)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved averages of the same model."""
        self.steps = state["steps"]
        _copy(state["weights"], self._mean)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@torch.no_grad()
def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.detach().copy_(like(source[name], tensor))
