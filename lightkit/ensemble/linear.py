"""The best linear model, solved for: what scikit-learn's `LogisticRegression` and `Ridge` find.

Shapes: N rows, F features, C outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
