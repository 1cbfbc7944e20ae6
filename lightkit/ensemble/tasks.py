"""Tasks of members that learn otherwise than a model alone: from adversarial inputs, or what other members leave.

Shapes: B samples, C classes, labels or targets, M networks.

Shapes: N rows, F features, C outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


SOLVABLE = ("torch.nn.CrossEntropyLoss", "torch.nn.BCEWithLogitsLoss", "torch.nn.MSELoss")
"""Losses under which a linear model is solved for, where they have no other arguments than weights."""
_ITERATIONS = 200
_HALVINGS = 60
_LARGEST = 3000
"""Unknowns of which a matrix is still solved; for more there are steps of L-BFGS."""
_PRECISE = 1e-12


class LinearModel(NamedTuple):
    """A linear model."""

    weight: Tensor
    """`(C, F)` float64."""
    bias: Tensor
    """`(C,)` float64."""


def solve(
    x: Tensor, y: Tensor, task: str, *, penalty: float = 1.0, weights: Tensor | None = None, outputs: int = 0
) -> LinearModel:
    """Find the linear model with the smallest sum of losses and penalty; the bias is not penalised.

    Classes: the sum of cross-entropies and `penalty / 2` times the squared weights. Two classes count as one output, as
    in scikit-learn; each label is a model of its own. Numbers: the sum of squared errors and `penalty` times the
    squared weights.

    Args:
        x: `(N, F)` features.
        y: `(N,)` classes, labels or numbers, or `(N, C)`.
        task: Kind of target.
        penalty: Strength, above 0; 1 is that of `LogisticRegression(C=1)` and of `Ridge(alpha=1)`.
        weights: `(N,)`, or `(N, C)` of labels: how much each row counts; None counts all alike.
        outputs: Classes; 0 takes those that are there.
    """
    x, rows = x.double().flatten(1), len(x)
    weights = torch.ones(rows, dtype=torch.float64) if weights is None else weights.double()
    shift, scale = x.mean(0), x.std(0, correction=0)
    scale = torch.where(scale > shift.abs() * 1e-14, scale, 1.0)
    z, strength = (x - shift) / scale, penalty / scale.square()  # the same problem, better to compute with
    if task == "regression":
        found = _ridge(z, y.double().reshape(rows, -1), strength, weights)
    elif task == "multiclass":
        count = outputs or int(y.max()) + 1
        if count == 2:
            one = _logistic(z, (y == 1).double()[:, None], strength, weights)
            found = torch.cat([-one / 2, one / 2])
        else:
            found = _logistic(z, F.one_hot(y.long(), count).double(), strength, weights)
    else:
        labels = y.double().reshape(rows, -1)
        each = weights if weights.ndim == 2 else weights[:, None].expand_as(labels)
        columns = zip(labels.unbind(1), each.unbind(1), strict=True)
        found = torch.cat([_logistic(z, label[:, None], strength, own) for label, own in columns])
    weight = found[:, :-1] / scale
    return LinearModel(weight, found[:, -1] - weight @ shift)


def row_weights(criterion: nn.Module, y: Tensor, task: str) -> Tensor | None:
    """Return how much each row counts under a loss, `(N,)`, or `(N, C)` of labels; None where all count alike.

    Args:
        criterion: One of `SOLVABLE`.
        y: The targets.
        task: Kind of target.
    """
    own, yes = getattr(criterion, "weight", None), getattr(criterion, "pos_weight", None)
    if task == "multiclass":
        return None if own is None else own.detach().cpu().double()[y.long()]
    if task == "regression" or (own is None and yes is None):
        return None
    labels = y.double().reshape(len(y), -1)
    found = torch.ones_like(labels)
    if yes is not None:
        found = torch.where(labels == 1, yes.detach().cpu().double(), found)
    return found if own is None else found * own.detach().cpu().double()


def _ridge(x: Tensor, y: Tensor, strength: Tensor, weights: Tensor) -> Tensor:
    """Return weights and biases `(C, F + 1)` of the smallest squared error."""
    both = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    matrix = (both * weights[:, None]).T @ both + torch.diag(F.pad(strength, (0, 1)))
    return torch.linalg.solve(matrix, (both * weights[:, None]).T @ y).T


class _Problem:
    """The sum of cross-entropies of a softmax over C outputs, or of a sigmoid of one, and its derivatives.

    Args:
        x: `(N, F)`.
        target: `(N, C)` shares of the classes; of a single output whether it is yes.
        strength: `(F,)`: penalty of each feature.
        weights: `(N,)`: how much each row counts.
    """

    def __init__(self, x: Tensor, target: Tensor, strength: Tensor, weights: Tensor) -> None:
        self.x, self.target, self.weights = torch.cat([x, torch.ones_like(x[:, :1])], 1), target, weights
        self.strength = F.pad(strength, (0, 1))
        self.shape = (target.shape[1], self.x.shape[1])

    def value(self, found: Tensor) -> Tensor:
        """Return what is to be as small as can be, of weights and biases `(C, F + 1)`."""
        out = self.x @ found.T
        if self.shape[0] == 1:
            losses = (F.softplus(out) - out * self.target)[:, 0]
        else:
            losses = torch.logsumexp(out, 1) - (out * self.target).sum(1)
        # Biases of a softmax may all be shifted; those with the sum 0 are taken.
        shifted = found[:, -1].sum().square() / 2 if self.shape[0] > 1 else 0.0
        return self.weights @ losses + (self.strength * found.square()).sum() / 2 + shifted

    def slope(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient `(C, F + 1)`, and the probabilities `(N, C)`."""
        out = self.x @ found.T
        chance = out.sigmoid() if self.shape[0] == 1 else out.softmax(1)
        slope = ((chance - self.target) * self.weights[:, None]).T @ self.x + self.strength * found
        if self.shape[0] > 1:
            slope[:, -1] += found[:, -1].sum()
        return slope, chance

    def curvature(self, chance: Tensor) -> Tensor:
        """Return the matrix of second derivatives, `(C (F + 1), C (F + 1))`."""
        count, size = self.shape
        matrix = torch.zeros(count, size, count, size, dtype=torch.float64)
        for one in range(count):
            for other in range(one, count):
                own = chance[:, one] * (float(one == other) - chance[:, other]) * self.weights
                block = (self.x * own[:, None]).T @ self.x
                matrix[one, :, other, :] = block
                matrix[other, :, one, :] = block
            matrix[one, :, one, :] += torch.diag(self.strength)
        if count > 1:
            matrix[:, -1, :, -1] += 1.0
        return matrix.reshape(count * size, count * size)


def _logistic(x: Tensor, target: Tensor, strength: Tensor, weights: Tensor) -> Tensor:
    """Return weights and biases `(C, F + 1)` of the smallest cross-entropy, by Newton's method with halved steps."""
    problem = _Problem(x, target, strength, weights)
    found = torch.zeros(problem.shape, dtype=torch.float64)
    if found.numel() > _LARGEST:
        return _by_lbfgs(problem, found)
    value = problem.value(found)
    for _ in range(_ITERATIONS):
        slope, chance = problem.slope(found)
        matrix = problem.curvature(chance)
        size = matrix.diagonal().clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
        scaled = matrix * size[:, None] * size + torch.eye(len(matrix), dtype=torch.float64) * 1e-14
        step = (size * torch.linalg.solve(scaled, size * slope.flatten())).reshape(problem.shape)
        promised = float((step * slope).sum())
        if promised <= _PRECISE * _PRECISE * max(1.0, abs(float(value))):
            break
        found, value, moved = _shortened(problem, found, value, step, promised)
        if not moved:
            break
    return found


def _shortened(
    problem: _Problem, found: Tensor, value: Tensor, step: Tensor, promised: float
) -> tuple[Tensor, Tensor, bool]:
    """Take a step, halved until it helps; tells whether one did."""
    length, rounding = 1.0, 1e-15 * max(1.0, abs(float(value)))
    for _ in range(_HALVINGS):
        tried = found - length * step
        new = problem.value(tried)
        if new <= value - 1e-4 * length * promised + rounding:
            return tried, new, True
        length /= 2
    return found, value, False


def _by_lbfgs(problem: _Problem, found: Tensor) -> Tensor:
    """Return the solution of a problem with many unknowns."""
    options = {"max_iter": 5000, "history_size": 50, "tolerance_grad": 1e-10, "tolerance_change": 1e-15}
    optimizer = torch.optim.LBFGS([found], line_search_fn="strong_wolfe", **options)  # type: ignore[arg-type]

    def closure() -> Tensor:
        found.grad = problem.slope(found)[0]
        return problem.value(found)

    with torch.no_grad():
        optimizer.step(closure)
    return found
