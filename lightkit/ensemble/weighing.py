"""How much each member of an ensemble counts, by what it predicts of rows that no member learnt from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.greedy import default_metric, select
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked

WEIGHTS = ("uniform", "validation", "greedy")
_ROUNDS = 25
_ITERATIONS = 200


def weigh(members: Sequence[MemberPredictions], task: str, *, how: str, rounds: int = _ROUNDS) -> Tensor:
    """Return the weights of members, `(M,)`, which sum to 1.

    Args:
        members: Their predictions; those of the test split are not used.
        task: Kind of target.
        how: `uniform`; `validation`, the weights with the smallest loss on rows that all members predicted; `greedy`,
            Caruana's selection by the same loss.
        rounds: Selections of `greedy` at most.

    Raises:
        UserError: There is no row that all members predicted without having trained on it.
    """
    if how == "uniform" or len(members) == 1:
        return torch.full((len(members),), 1 / len(members), dtype=torch.float64)
    held = weighing_rows(members)
    if not len(held[0]):
        raise UserError(
            "no row is left to weigh members by: each of them was trained on by one",
            argument="weights",
            received=how,
            fix="a validation split (data.split.val), or ensemble.weights=uniform",
            family="ensemble",
        )
    predictions, targets = stacked(held), held[0].targets
    if how == "greedy":
        return torch.tensor(select(predictions, targets, task, rounds=rounds).weights, dtype=torch.float64)
    return smallest_loss(predictions, targets, task)


def weighing_rows(members: Sequence[MemberPredictions]) -> list[MemberPredictions]:
    """Return what members predict of the rows that weights are found by: those that all predicted, but for test rows.

    Args:
        members: Their predictions.
    """
    held = aligned([member.of_split("train", "val") for member in members])
    known = torch.stack([member.predicted for member in held]).all(0)
    return [member.take(known) for member in held]


def smallest_loss(predictions: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return the convex weights whose mean has the smallest loss: squared error, or negative log-likelihood.

    Exponentiated gradient descent from uniform weights, which keeps them above 0 and at a sum of 1
    (https://doi.org/10.1006/inco.1996.2612). Both losses are convex in the weights.

    Args:
        predictions: `(M, N, C)`.
        targets: `(N, ...)`.
        task: Kind of target.
    """
    metric, size = default_metric(task), len(predictions)
    best = weights = torch.full((size,), 1 / size, dtype=torch.float64)
    rate, least = 1.0, metric(targets, torch.einsum("m,mnc->nc", weights, predictions.double()))
    for _ in range(_ITERATIONS):
        slope = _slope(predictions.double(), targets, task, best)
        weights = best * torch.exp(-rate * (slope - slope.min()))
        weights = weights / weights.sum()
        loss = metric(targets, torch.einsum("m,mnc->nc", weights, predictions.double()))
        if loss < least:
            best, least, rate = weights, loss, rate * 1.5
        else:
            rate /= 2
    return best


def _slope(predictions: Tensor, targets: Tensor, task: str, weights: Tensor) -> Tensor:
    """Return the derivative of the loss by each weight, `(M,)`."""
    mean = torch.einsum("m,mnc->nc", weights, predictions)
    targets = targets.reshape(len(mean), -1)
    if task == "regression":
        return 2 * torch.einsum("mnc,nc->m", predictions, mean - targets) / mean.numel()
    tiny = torch.finfo(torch.float32).tiny
    if task == "multiclass":
        right = predictions.gather(2, targets.long().expand(len(predictions), -1, 1))[..., 0]
        return -(right / mean.gather(1, targets.long())[:, 0].clamp_min(tiny)).mean(1)
    yes, no = targets / mean.clamp_min(tiny), (1 - targets) / (1 - mean).clamp_min(tiny)
    return -(predictions * (yes - no)).flatten(1).mean(1)
