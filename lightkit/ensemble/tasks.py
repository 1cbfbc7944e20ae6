"""Tasks of members that learn otherwise than a model alone: from adversarial inputs, or what other members leave.

Shapes: B samples, C classes, labels or targets, M networks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.trainer.tasks import Criterion, StepOutput, Task, fit_shape, logits


class FastGradientSign(Task):
    """Learn from inputs and from inputs changed by the sign of the loss's gradient, half of the loss each.

    Fast gradient sign method, https://arxiv.org/abs/1412.6572; inputs lie in [0, 1] and are kept there. Validation and
    test see the inputs as they are.

    Args:
        task: How a batch of an input and a target becomes a loss.
        epsilon: Size of the change.
    """

    def __init__(self, task: Task, *, epsilon: float) -> None:
        self.task, self.epsilon = task, epsilon

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss on the inputs, and in training on the changed ones too; see `Task.step`."""
        if not model.training:
            return self.task.step(model, batch, criterion)
        return self.on_both(batch, lambda inputs: self.task.step(model, inputs, criterion))

    def on_both(self, batch: Any, compute: Callable[[Any], StepOutput]) -> StepOutput:
        """Compute the mean of the losses on the inputs and on the changed ones; outputs are those of the first.

        Args:
            batch: Inputs and targets, of one model or of several at once.
            compute: Computes a batch. The losses of several models, `(M,)`, depend on the inputs of each alone.
        """
        x, y = batch
        x = x.detach().requires_grad_()
        plain = compute((x, y))
        (gradient,) = torch.autograd.grad(plain.loss.sum(), x, retain_graph=True)
        changed = (x.detach() + self.epsilon * gradient.sign()).clamp_(0.0, 1.0)
        worst = compute((changed, y))
        return plain._replace(loss=(plain.loss + worst.loss) / 2)


def residuals(total: Tensor, target: Tensor, kind: str) -> Tensor:
    """Compute what a sum of networks leaves to be learnt: the negative gradient of its loss.

    Args:
        total: Sum of the outputs so far, `(B, C)`; `(B,)` or `(B, 1)` of binary targets and of one number.
        target: Classes `(B,)`, shares of classes `(B, C)`, labels or numbers like `total`.
        kind: `multiclass`, `binary`, `multilabel` or `regression`.
    """
    if kind == "multiclass":
        shares = target if target.is_floating_point() else F.one_hot(target, total.shape[1])
        return shares.to(total.dtype) - total.softmax(1)
    target = target.to(total.dtype).reshape(total.shape)
    return target - (total if kind == "regression" else total.sigmoid())


class Residual(Task):
    """Learn what the sum of earlier networks leaves; outputs are those of the sum with this network in it.

    Validation and test measure the sum with the loss of the run.

    Args:
        networks: The earlier networks, on the device of the model. They are never changed, copied or saved.
        shrinkage: Factor of each network in the sum.
        kind: Kind of target; see `residuals`.
    """

    def __init__(self, networks: Sequence[nn.Module], *, shrinkage: float, kind: str) -> None:
        self.networks = [network.eval() for network in networks]
        self.shrinkage, self.kind = shrinkage, kind

    def __deepcopy__(self, memo: dict[int, Any]) -> Residual:
        """Copy with the same networks, which never change."""
        return copy.copy(self)

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the squared distance to the residuals in training, and else the loss of the sum; see `Task.step`."""
        x, y = batch
        own = fit_shape(logits(model(x)), y)
        before = self._before(x, own)
        total = before + self.shrinkage * own.detach()
        if not model.training:
            return StepOutput(criterion(total, y), total, y)
        return StepOutput(F.mse_loss(own, residuals(before, y, self.kind)), total, y, weight=len(y))

    def _before(self, x: Tensor, like: Tensor) -> Tensor:
        """Return the sum of the earlier networks, without gradients."""
        total = torch.zeros_like(like)
        with torch.no_grad():
            for network in self.networks:
                if any(part.device != like.device for part in list(network.parameters())[:1]):
                    network = copy.deepcopy(network).to(like.device)  # the dry run tries its first batch on the CPU
                total = total + self.shrinkage * logits(network(x)).reshape(like.shape)
        return total


class JointResiduals(Task):
    """Learn all networks of a soft gradient boosting at once: each what the sum of those before it leaves.

    The model is a `Joint` that gives the outputs of all its networks in training. Their losses are added up.

    Args:
        shrinkage: Factor of each network in the sum.
        kind: Kind of target; see `residuals`.
    """

    def __init__(self, *, shrinkage: float, kind: str) -> None:
        self.shrinkage, self.kind = shrinkage, kind

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the sum of the squared distances in training, and else the loss of the sum; see `Task.step`."""
        x, y = batch
        if not model.training:
            total = fit_shape(logits(model(x)), y)
            return StepOutput(criterion(total, y), total, y)
        outputs: Tensor = model(x)
        if outputs.ndim == y.ndim + 2 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        total, loss = torch.zeros_like(outputs[:, 0]), outputs.new_zeros(())
        for own in outputs.unbind(1):
            loss = loss + F.mse_loss(own, residuals(total, y, self.kind))
            total = total + self.shrinkage * own.detach()
        return StepOutput(loss, total, y, weight=len(y))
