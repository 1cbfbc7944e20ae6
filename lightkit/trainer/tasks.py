"""How a batch becomes a loss and the inputs of the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.losses import mean_weight

Criterion = Callable[[Tensor, Tensor], Tensor]


class StepOutput(NamedTuple):
    """What one batch gives.

    Attributes:
        loss: Mean loss over the samples of the batch, a 0-d tensor.
        preds: First argument of the metrics: a tensor with samples in dimension 0, or a list with
            a text for each sample, for those of `torchmetrics.text`; None leaves the metrics alone.
        target: Second argument of the metrics; of texts a list with a text, or a list of texts, for each sample.
        metric_kwargs: Further arguments of the metrics by name, tensors with samples in dimension 0 or lists; each
            metric gets those that its `update` has, such as `{"indexes": ...}` for those of `torchmetrics.retrieval`.
        weight: What `loss` weighs in the mean over a split, such as the sum of the class weights of the batch. None
            goes by the loss of the run, as if it had compared `preds` with `target`; see `lightkit.losses.mean_weight`.
    """

    loss: Tensor
    preds: Any = None
    target: Any = None
    metric_kwargs: Mapping[str, Any] | None = None
    weight: Tensor | int | None = None


class Task:
    """Base of all tasks: override `step` for a model with several inputs, its own losses or its own metrics inputs.

    Name the subclass in the configuration: `trainer.task._target_: my_project.tasks.Siamese`.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
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
    """One input, one target: `criterion(model(x), y)`.

    A model may give a mapping of tensors in the place of one, by these names; any other is not looked at:

    - `logits`: its outputs, as with the models of transformers;
    - `members`, in training only: the outputs of K networks in one, `(B, K, ...)`. The training loss is the mean of
      their losses in the place of the loss of `logits`. A loss that compares samples with each other says so by an
      attribute `compares_samples`, and is computed for one member after the other;
    - `penalty`, in training only: a number that is added to the training loss; of several numbers their mean is.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute loss and metric inputs of a batch `(x, y)`; see `Task.step`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            fix = "a task of your own takes them apart: trainer.task._target_=my_module.MyTask"
            if isinstance(batch, (tuple, list)) and len(batch) == 3:
                fix = f"{fix}; where the third is the query of the sample, {_RETRIEVAL} is one"
            raise UserError(
                "the samples are no pairs of an input and a target",
                key="trainer.task",
                received=_kind(batch),
                fix=fix,
            )
        x, y = batch
        output = model(x)
        preds = fit_shape(logits(output), y)
        named = output if model.training and isinstance(output, Mapping) else {}
        loss = _loss_of_members(criterion, named["members"], y) if "members" in named else criterion(preds, y)
        return StepOutput(loss + named["penalty"].mean() if "penalty" in named else loss, preds, y)


class Retrieval(Supervised):
    """One input, one target, and the query that they belong to: for the metrics of `torchmetrics.retrieval`.

    Batches are `(x, y, indexes)`: `y` says whether (or how much) the document of a sample is relevant for its query,
    `indexes` which query that is, a whole number each. Metrics get them under the same names as in torchmetrics.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute loss and metric inputs of a batch `(x, y, indexes)`; see `Task.step`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 3:
            raise UserError(
                "the samples are not an input, a target and the number of a query",
                key="trainer.task",
                expected="(x, y, indexes)",
                received=_kind(batch),
            )
        x, y, indexes = batch
        return super().step(model, (x, y), criterion)._replace(metric_kwargs={"indexes": indexes})


_RETRIEVAL = f"{Retrieval.__module__}.{Retrieval.__qualname__}"


def _kind(batch: Any) -> str:
    if isinstance(batch, dict):
        return f"dict of {', '.join(map(str, batch))}"
    return f"{type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")


def _loss_of_members(criterion: Criterion, members: Tensor, y: Tensor) -> Tensor:
    """Compute the mean of the losses of the outputs of members, `(B, K, ...)`."""
    if getattr(criterion, "compares_samples", False):
        return torch.stack([criterion(fit_shape(member, y), y) for member in members.unbind(1)]).mean()
    # A mean over samples is the same over the samples of all members, in one call.
    repeated = y.repeat_interleave(members.shape[1], 0)
    return criterion(fit_shape(members.flatten(0, 1), repeated), repeated)


def loss_weight(step: StepOutput, criterion: Criterion) -> Tensor | int | None:
    """Return what the loss of a batch weighs among others; None stands for its number of samples."""
    return mean_weight(criterion, step.preds, step.target) if step.weight is None else step.weight


def logits(output: Any) -> Any:
    """Return what a model gives, or its entry `logits` where it gives several things by name, as transformers do."""
    return output["logits"] if isinstance(output, Mapping) and "logits" in output else output


def fit_shape(output: Tensor, target: Tensor) -> Tensor:
    """Drop the last dimension of an `(N, 1)` output where the target is `(N,)` floats.

    A loss would otherwise broadcast the two to `(N, N)` and train on nonsense without an error.
    """
    if output.ndim == target.ndim + 1 and output.shape[-1] == 1 and torch.is_floating_point(target):
        return output.squeeze(-1)
    return output
