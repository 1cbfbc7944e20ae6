"""How a batch becomes a loss and the inputs of the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError

Criterion = Callable[[Tensor, Tensor], Tensor]


class Step(NamedTuple):
    """What one batch gives.

    Args:
        loss: Mean loss over the samples of the batch, a 0-d tensor.
        preds: First argument of the metrics, samples in dimension 0; None leaves the metrics alone.
        target: Second argument of the metrics.
    """

    loss: Tensor
    preds: Tensor | None = None
    target: Tensor | None = None


class Task:
    """Base of all tasks: override `step` for a model with several inputs, its own losses or its own metrics inputs.

    Name the subclass in the configuration: `trainer.task._target_: my_project.tasks.Siamese`.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> Step:
        """Compute the loss of one batch; the same method serves training, validation and test.

        Gradients, devices, precision, logging and accumulation are the caller's: this method only computes.
        `model.training` tells whether the batch is for training.

        Args:
            model: The network; call it, do not reach into it, so that it also works when wrapped for several GPUs.
            batch: What the data set yields, already on the device.
            criterion: The configured loss.

        Returns:
            The loss and what the metrics see.
        """
        raise NotImplementedError


class Supervised(Task):
    """One input, one target: `criterion(model(x), y)`."""

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> Step:
        """Loss and metric inputs of a batch `(x, y)`; see `Task.step`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise UserError(
                "the samples are no pairs of an input and a target",
                key="trainer.task",
                received=_kind(batch),
                fix="a task of your own takes them apart: trainer.task._target_=my_module.MyTask",
            )
        x, y = batch
        output = fit_shape(model(x), y)
        return Step(criterion(output, y), output, y)


def _kind(batch: Any) -> str:
    if isinstance(batch, dict):
        return f"dict of {', '.join(map(str, batch))}"
    return f"{type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")


def fit_shape(output: Tensor, target: Tensor) -> Tensor:
    """Drop the last dimension of an `(N, 1)` output where the target is `(N,)` floats.

    A loss would otherwise broadcast the two to `(N, N)` and train on nonsense without an error.
    """
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1 and torch.is_floating_point(target):
        return output.squeeze(-1)
    return output
