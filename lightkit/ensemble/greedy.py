"""Caruana's ensemble selection, by AutoGluon's rule: members enter one at a time, with replacement.

R. Caruana et al., Ensemble Selection from Libraries of Models, 2004, https://doi.org/10.1145/1015330.1015432.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_choice, check_range
from lightkit.common.errors import UserError
from lightkit.ensemble.calibration import log_likelihood, squared_error
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked

Metric = Callable[[Tensor, Tensor], float]
"""A value of targets `(N, ...)` and predictions `(N, C)`."""

_DECIMALS = 6
_PERFECT = 1e-4
"""An error up to here is not rounded, as nothing would be left of it."""


@dataclass(frozen=True)
class Selection:
    """Which members were selected, and what they reached.

    Args:
        weights: A weight for each candidate, adding up to 1.
        order: The members in the order in which they entered, up to the best ensemble.
        scores: The metric after each of them.
        rows: How many rows decided.
    """

    weights: tuple[float, ...]
    order: tuple[int, ...]
    scores: tuple[float, ...]
    rows: int


def default_metric(task: str) -> Metric:
    """Return what is minimised where nothing else is asked for: the negative log-likelihood, or the squared error."""
    if task == "regression":
        return lambda targets, predictions: float(squared_error(predictions, targets).mean())
    return lambda targets, predictions: -float(log_likelihood(predictions, targets, task).mean())


def select(
    predictions: Tensor,
    targets: Tensor,
    task: str,
    *,
    metric: Metric | None = None,
    mode: str = "min",
    rounds: int = 25,
) -> Selection:
    """Choose weights by adding, round after round, the member that makes the mean of the chosen ones best.

    A member may enter again, which is what makes weights. After the first round scores are rounded, so that of twins
    one enters again rather than both; ties go to members already in, then to the better log-likelihood (squared error),
    then to the first. The best ensemble on the way is kept, the smallest of equals.

    Args:
        predictions: `(M, N, C)` of the candidates; only rows that every one predicted (no NaN) decide.
        targets: `(N, ...)`.
        task: Kind of targets.
        metric: A value of targets and mean predictions (float64); None takes `default_metric`.
        mode: `min` or `max`: whether smaller or larger values of the metric are better. One to be maximised has its
            best value at 1.
        rounds: Most members, counted as often as they entered.

    Raises:
        UserError: There is no candidate, no row that all predicted, or the metric is nowhere finite.
    """
    check_range("rounds", rounds, low=1)
    check_choice("mode", mode, ("min", "max"))
    candidates, truth = _common_rows(predictions, targets)
    if metric is None and task == "multiclass":  # its log-likelihood asks for the true class only
        chosen = truth.reshape(1, -1, 1).long().expand(len(candidates), -1, 1)
        candidates = candidates.gather(2, chosen) / candidates.sum(2, keepdim=True)
        truth, task = torch.ones(len(truth)), "binary"
    fallback = default_metric(task)
    measure = metric or fallback
    total = torch.zeros(candidates.shape[1:], dtype=torch.float64)
    order: list[int] = []
    errors: list[float] = []
    decimals = None

    def mean_with(member: int) -> Tensor:
        together = (total + candidates[member]) / (len(order) + 1)
        return together / together.sum(1, keepdim=True) if task == "multiclass" else together

    for _ in range(rounds if len(candidates) > 1 else 1):
        tried = _values([measure(truth, mean_with(member)) for member in range(len(candidates))])
        error = 1 - tried if mode == "max" else tried
        error = error if decimals is None else error.round(decimals=decimals)
        best, tied = _best(error)
        tied = [member for member in tied if member in order] or tied
        if len(tied) > 1:
            finer = _values([fallback(truth, mean_with(member)) for member in tied])
            tied = [tied[at] for at in _best(finer)[1]] if finer.isfinite().any() else tied
        if not order and abs(best) > _PERFECT:
            decimals, best = _DECIMALS, round(best, _DECIMALS)
        total += candidates[tied[0]]
        order.append(tied[0])
        errors.append(best)
    order = order[: errors.index(min(errors)) + 1]
    weights = torch.tensor(order).bincount(minlength=len(candidates)).double() / len(order)
    scores = tuple(1 - error if mode == "max" else error for error in errors[: len(order)])
    return Selection(tuple(weights.tolist()), tuple(order), scores, len(truth))


def _common_rows(predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the rows that all candidates predicted; refuse where there are none."""
    if not len(predictions):
        raise UserError("there is nothing to select from", argument="members", received=0)
    common = ~predictions.isnan().any(-1).any(0)
    if not common.any():
        fix = "select among members that were trained on the same rows, or predicted the same split"
        raise UserError("no row was predicted by all members", argument="members", fix=fix)
    return predictions[:, common], targets[common]


def _values(found: list[float]) -> Tensor:
    return torch.tensor(found, dtype=torch.float64)


def _best(errors: Tensor) -> tuple[float, list[int]]:
    """Return the smallest error and who has it, apart from what rounding does; what is not finite has lost."""
    errors = torch.where(errors.isfinite(), errors, torch.inf)
    best = errors.min()
    if best.isinf():
        raise UserError("the metric is finite for none of the members", argument="metric")
    return float(best), torch.isclose(errors, best, atol=0, rtol=1e-12).nonzero().reshape(-1).tolist()


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
