"""How much members differ, and what that brings: disagreement, common faults, correlation, uncertainty, size.

Predictions are `(M, N, C)` of M members, N rows, C outputs: probabilities, of regression the values. A pair of members
is compared on the rows that both predicted (not NaN).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.combining import Weights, decisions, soft, subsets


@dataclass(frozen=True)
class Uncertainty:
    """How sure an ensemble is of each row, in nats.

    Args:
        entropy: `(N,)`: of the mean prediction; of several labels the sum. NaN for regression.
        mutual_information: `(N,)`: the part of `entropy` that is there because the members differ. NaN for regression.
        standard_deviation: `(N, C)`: of each output over the members.
    """

    entropy: Tensor
    mutual_information: Tensor
    standard_deviation: Tensor


def uncertainty(predictions: Tensor, task: str, weights: Weights = None) -> Uncertainty:
    """Measure for each row how sure the ensemble is, and how much its members differ."""
    mean = soft(predictions.double(), weights)
    variance = soft((predictions.double() - mean).square(), weights)
    if task == "regression":
        nothing = torch.full((predictions.shape[1],), torch.nan, dtype=torch.float64)
        return Uncertainty(nothing, nothing, variance.sqrt())
    total = _entropy(mean, task)
    inside = soft(torch.stack([_entropy(member.double(), task) for member in predictions])[..., None], weights)[:, 0]
    return Uncertainty(total, (total - inside).clamp_min(0), variance.sqrt())


def _entropy(chances: Tensor, task: str) -> Tensor:
    entropy = torch.special.entr(chances).sum(-1)
    return entropy if task == "multiclass" else entropy + torch.special.entr(1 - chances).sum(-1)


class MemberOutputs:
    """Collects what every member predicts, batch by batch.

    Args:
        task: Kind of target, as in `lightkit.data.DataInfo`.
        weights: How much each member counts, `(M,)`.
        unit: What deviations of numbers are multiplied by.
        undo: What turns learnt numbers into targets before that.
    """

    def __init__(
        self, task: str, weights: Tensor, unit: float = 1.0, undo: Callable[[Tensor], Tensor] = Tensor.detach
    ) -> None:
        self.task, self.weights, self._unit, self._undo = task, weights.cpu(), unit, undo
        self.batches: list[Tensor] = []

    def __call__(self, predictions: Tensor) -> None:
        """Take in the predictions `(M, B, C)` of a batch."""
        self.batches.append(predictions.detach().cpu())

    def columns(self, combined: Tensor) -> dict[str, list[Any]]:
        """Return how sure the ensemble is of each sample, by what that is called.

        Of regression that is the standard deviation over the members, `std`. Of classes and labels: `entropy` of the
        mean prediction, `mutual_information` (the part of it that is there because the members differ), both in nats
        and of several labels their sum, and `disagreement`, the share of the members that decide otherwise than the
        ensemble, of several labels the mean over them.

        Args:
            combined: What the ensemble puts out, `(N,)` or `(N, C)`.

        Returns:
            A value a sample under each name. Empty where no member has predicted them, or only one has.
        """
        size = sum(batch.shape[1] for batch in self.batches)
        if size != len(combined) or len(self.weights) < 2:
            return {}
        predictions = self._undo(torch.cat(self.batches, 1))
        found = uncertainty(predictions, self.task, self.weights)
        if self.task == "regression":
            return {"std": (found.standard_deviation.reshape(combined.shape) * self._unit).tolist()}
        table = combined.reshape(predictions.shape[1:])  # logits: the largest is that of the class, of labels above 0
        decided = table.argmax(-1) if self.task == "multiclass" else (table > 0).long()
        differs = (decisions(predictions, self.task) != decided).double().reshape(len(predictions), size, -1).mean(-1)
        share = self.weights.double() / self.weights.double().sum()
        return {
            "entropy": found.entropy.tolist(),
            "mutual_information": found.mutual_information.tolist(),
            "disagreement": torch.einsum("m,mn->n", share, differs).tolist(),
        }


def disagreement(predictions: Tensor, task: str) -> Tensor:
    """Return the share of rows, of `multilabel` of labels, that two members decide differently, `(M, M)`."""
    decided, known = _decided(predictions, task)
    pairs = [((decided != mine) & known & there).sum(1) for mine, there in zip(decided, known)]
    return torch.stack(pairs).double() / _common(known)


def double_fault(predictions: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return the share of rows, of `multilabel` of labels, that two members both get wrong, `(M, M)`.

    The diagonal has the error of each member.
    """
    wrong, known = _wrong(predictions, targets, task)
    return wrong @ wrong.T / _common(known)


def error_correlation(predictions: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return how the errors of two members are correlated, `(M, M)`; NaN where one makes always the same error.

    An error is being wrong, of regression the residual, of all targets together.
    """
    if task == "regression":
        residuals = (predictions.double() - targets.reshape(predictions.shape[1:]).double()).flatten(1)
        known = ~residuals.isnan()
        errors = residuals.nan_to_num(0.0)
    else:
        errors, known = _wrong(predictions, targets, task)
    weight, count = known.double(), _common(known)
    errors = (errors - errors.sum(1, keepdim=True) / weight.sum(1, keepdim=True)) * weight  # sums of squares lose less
    mean = errors @ weight.T / count  # of the first member of a pair, over the rows of both
    square = errors.square() @ weight.T / count - mean.square()
    spread = square.clamp_min(0).sqrt()
    covariance = errors @ errors.T / count - mean * mean.T
    scale = spread * spread.T
    return torch.where(scale > 1e-15, covariance / scale, torch.nan).clamp(-1, 1)


@dataclass(frozen=True)
class BySize:
    """A metric of ensembles of growing size.

    Args:
        sizes: Numbers of members.
        first: The metric of the first so many members, for each size.
        drawn: The metric of different subsets of that many, for each size.
    """

    sizes: Sequence[int]
    first: Sequence[float]
    drawn: Sequence[Sequence[float]]

    @property
    def mean(self) -> list[float]:
        """The mean over the subsets, for each size."""
        return [math.fsum(values) / len(values) for values in self.drawn]


def by_size(
    predictions: Tensor, metric: Callable[[Tensor], float], *, sizes: Sequence[int], draws: int = 20, seed: int = 0
) -> BySize:
    """Measure ensembles of some of the members.

    Args:
        predictions: `(M, N, C)` of rows that every member predicted.
        metric: The value of those of several members, together.
        sizes: The numbers of members.
        draws: Most subsets of a size.
        seed: Seed of the subsets.
    """
    count, first, drawn = len(predictions), list[float](), list[list[float]]()
    for size in sizes:
        first.append(metric(predictions[:size]))
        picked = subsets(count, size, draws=max(draws, count) if size == 1 else draws, seed=seed)
        drawn.append([metric(predictions[subset]) for subset in picked])
    return BySize(sizes, first, drawn)


def _decided(predictions: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """Return what each member decided, and where it did, both `(M, K)` over K rows or labels."""
    if task == "regression":
        raise UserError("values are no decisions that could differ", argument="task", received=task)
    decided = decisions(predictions, task)
    known = ~predictions.sum(-1).isnan()  # of a single NaN the sum is one, too
    if task != "multiclass":
        known = known[..., None].expand(decided.shape)
    return decided.flatten(1), known.flatten(1)


def _wrong(predictions: Tensor, targets: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """Return 1.0 where a member is wrong and where it decided, both `(M, K)` over K rows or labels."""
    decided, known = _decided(predictions, task)
    truth = targets.reshape(-1)
    truth = truth if task == "multiclass" else truth > 0.5
    return ((decided != truth.long()) & known).double(), known


def _common(known: Tensor) -> Tensor:
    """Return how many rows two members share, `(M, M)`."""
    weight = known.double()
    return weight @ weight.T
