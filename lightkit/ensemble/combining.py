"""How the predictions of members become one: votes, means and weights, and what a model's output is to them.

Predictions are `(M, N, C)` of M members, N rows, C outputs: probabilities, of regression the values. A member that
predicted nothing of a row has NaN there and has no say in it; a row that nobody predicted stays NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.ensemble.oof import MemberPredictions, aligned, stacked

WEIGHTS = ("uniform", "validation", "greedy")
"""How members are weighed."""
_DECIMALS = 6
_PERFECT = 1e-4
"""A loss up to here is not rounded, as nothing would be left of it."""
_ITERATIONS = 200
Weights = Sequence[float] | Tensor | None
"""A weight for each member, of any scale; None weighs all alike."""


def soft(predictions: Tensor, weights: Weights = None) -> Tensor:
    """Average the predictions `(M, ..., N, C)` to `(..., N, C)`.

    Raises:
        UserError: The weights are not one for each member, or none is above 0.
    """
    share = _checked(weights, predictions)
    total = torch.zeros(predictions.shape[1:], dtype=torch.float64)
    present, gaps = torch.zeros(1, dtype=torch.float64), predictions.sum().isnan()  # of a NaN the sum is one, too
    for member, weight in zip(predictions, share.tolist()):  # one at a time, as all in double need too much memory
        there = ~member.isnan().any(-1, keepdim=True) if gaps else ~gaps
        total += (torch.where(there, member, 0.0) if gaps else member).double() * weight
        present = present + there * weight
    return (total / present).to(predictions.dtype)  # 0 / 0 is NaN


def hard(predictions: Tensor, weights: Weights = None, *, task: str) -> Tensor:
    """Count the votes: the share of the members' weight that decided for each class or label, `(N, C)`.

    The largest share wins; of equal ones the lower class, as with `torch.argmax`, and of binary labels 0.

    Raises:
        UserError: The weights are not one for each member, or none is above 0; or the task has no classes.
    """
    if task == "regression":
        raise UserError("only classes can be voted for", argument="vote", received="hard", choices=("soft",))
    votes = []
    for member in predictions:
        decided = decisions(member, task)
        cast = torch.nn.functional.one_hot(decided, member.shape[1]) if task == "multiclass" else decided
        votes.append(cast.to(predictions.dtype).masked_fill(member.isnan().any(1, keepdim=True), float("nan")))
    return soft(torch.stack(votes), weights)


def decisions(predictions: Tensor, task: str) -> Tensor:
    """Return what was decided: the class `(..., N)`, or 0 or 1 for each label `(..., N, C)`.

    Of what is NaN that says nothing: mask it.
    """
    return predictions.argmax(-1) if task == "multiclass" else (predictions > 0.5).long()


def as_probabilities(outputs: Tensor, task: str) -> Tensor:
    """Turn outputs of a model `(N,)` or `(N, C, ...)` into float32 predictions `(N, C, ...)`, by softmax or sigmoid."""
    outputs = outputs.detach().float()
    outputs = outputs[:, None] if outputs.ndim == 1 else outputs
    if task in ("multiclass", "segmentation", "tagging"):
        return outputs.softmax(1)
    return outputs if task == "regression" else outputs.sigmoid()


def as_logits(predictions: Tensor, task: str) -> Tensor:
    """Turn predictions `(..., C)` into what a model would have put out for them; always finite.

    The logarithm is taken in double precision. In single precision it differs in the last bit by where a number stands
    in a batch, and so equal shares of votes would not stay equal.
    """
    if task == "regression":
        return predictions
    # Near 0 a probability is as small as it says; near 1 it is rounded, and could as well be half an eps less.
    limits, wide = torch.finfo(predictions.dtype), predictions.double()
    logits = wide.clamp_min(limits.tiny).log()
    if task != "multiclass":
        logits = logits - (1 - wide).clamp_min(limits.eps / 2).log()
    return logits.to(predictions.dtype)


def subsets(count: int, size: int, *, draws: int = 20, seed: int = 0) -> list[list[int]]:
    """List different subsets of members: all of a size where there are no more than `draws`, else so many random ones.

    Args:
        count: Members there are.
        size: Members in a subset.
        draws: Most subsets.
        seed: Seed of the draw.
    """
    if math.comb(count, size) <= draws:
        return [list(chosen) for chosen in itertools.combinations(range(count), size)]
    generator = torch.Generator().manual_seed(mix(seed, "subsets", count, size))
    found: dict[tuple[int, ...], None] = {}
    while len(found) < draws:
        found[tuple(sorted(torch.randperm(count, generator=generator)[:size].tolist()))] = None
    return [list(chosen) for chosen in found]


def _checked(weights: Weights, predictions: Tensor) -> Tensor:
    """Return weights that add up to 1, in double precision."""
    count = len(predictions)
    given = torch.ones(count) if weights is None else torch.as_tensor(weights)
    given = given.to("cpu", torch.float64)
    if given.shape != (count,):
        expected = f"{count}, one for each member"
        raise UserError("wrong number of weights", argument="weights", expected=expected, received=given.numel())
    if not (given.isfinite().all() and (given >= 0).all() and given.sum() > 0):
        expected = "0 or more each, and one above 0"
        raise UserError("these cannot weigh members", argument="weights", expected=expected, received=given.tolist())
    return given / given.sum()


def log_likelihood(predictions: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return the natural logarithm of what `(..., N, C)` give to the truth, `(..., N)` float64; the mean over labels.

    Probabilities are kept off 0 and 1 by the smallest step of their precision, as scikit-learn does.

    Raises:
        UserError: The task is regression, whose predictions are no probabilities.
    """
    if task == "regression":
        raise UserError("a value has no likelihood without a variance", argument="task", received=task)
    if task == "multiclass":
        truth = targets.reshape(-1, 1).long().expand(*predictions.shape[:-1], 1)
        return off_limits(predictions.gather(-1, truth))[..., 0].log()
    chance = off_limits(predictions)
    return torch.where(targets.reshape(chance.shape[-2:]) > 0.5, chance, 1 - chance).log().mean(-1)


def squared_error(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each row, `(N,)` float64; the mean over regression targets."""
    return (predictions.double() - targets.reshape(predictions.shape).double()).square().mean(1)


def row_losses(predictions: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return the loss of each row, `(N,)` float64: the negative log-likelihood, or the squared error."""
    return squared_error(predictions, targets) if task == "regression" else -log_likelihood(predictions, targets, task)


def mean_loss(predictions: Tensor, targets: Tensor, task: str) -> float:
    """Return the mean loss of rows, which is minimised where weights are found."""
    return float(row_losses(predictions, targets, task).mean())


def off_limits(predictions: Tensor) -> Tensor:
    """Return probabilities in double precision that are neither 0 nor 1."""
    eps = torch.finfo(predictions.dtype).eps
    return predictions.double().clamp(eps, 1 - eps)


def select(predictions: Tensor, targets: Tensor, task: str, *, rounds: int = 25) -> Tensor:
    """Choose weights by adding, round after round, the member that makes the loss of the mean of the chosen ones least.

    Caruana's ensemble selection (https://doi.org/10.1145/1015330.1015432) by AutoGluon's rule. A member may enter
    again, which is what makes weights. After the first round losses are rounded, so that of twins one enters again
    rather than both; ties go to members already in, then to the smaller loss before rounding, then to the first. The
    best ensemble on the way is kept, the smallest of equals.

    Args:
        predictions: `(M, N, C)` of the candidates; only rows that every one predicted (no NaN) decide.
        targets: `(N, ...)`.
        task: Kind of targets.
        rounds: Most members, counted as often as they entered.

    Returns:
        A weight for each candidate, `(M,)` float64, adding up to 1.

    Raises:
        UserError: There is no candidate, no row that all predicted, or the loss is nowhere finite.
    """
    check_range("rounds", rounds, low=1)
    candidates, truth = _common_rows(predictions, targets)
    if task == "multiclass":  # the log-likelihood asks for the true class only
        chosen = truth.reshape(1, -1, 1).long().expand(len(candidates), -1, 1)
        candidates = candidates.gather(2, chosen) / candidates.sum(2, keepdim=True)
        truth, task = torch.ones(len(truth)), "binary"
    total = torch.zeros(candidates.shape[1:], dtype=torch.float64)
    order, errors, rounded = list[int](), list[float](), False
    for _ in range(rounds if len(candidates) > 1 else 1):
        losses = [mean_loss((total + one) / (len(order) + 1), truth, task) for one in candidates]
        exact = torch.tensor(losses, dtype=torch.float64)
        best, tied = _best(exact.round(decimals=_DECIMALS) if rounded else exact)
        tied = [member for member in tied if member in order] or tied
        tied = [tied[at] for at in _best(exact[tied])[1]]
        if not order and abs(best) > _PERFECT:
            rounded, best = True, round(best, _DECIMALS)
        total += candidates[tied[0]]
        order.append(tied[0])
        errors.append(best)
    order = order[: errors.index(min(errors)) + 1]
    return torch.tensor(order).bincount(minlength=len(candidates)).double() / len(order)


def _common_rows(predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the rows that all candidates predicted; refuse where there are none."""
    if not len(predictions):
        raise UserError("there is nothing to select from", argument="members", received=0)
    common = ~predictions.isnan().any(-1).any(0)
    if not common.any():
        fix = "select among members that were trained on the same rows, or predicted the same split"
        raise UserError("no row was predicted by all members", argument="members", fix=fix)
    return predictions[:, common], targets[common]


def _best(errors: Tensor) -> tuple[float, list[int]]:
    """Return the smallest error and who has it, apart from what rounding does; what is not finite has lost."""
    errors = torch.where(errors.isfinite(), errors, torch.inf)
    best = errors.min()
    if best.isinf():
        raise UserError("the loss is finite for none of the members", argument="members")
    return float(best), torch.isclose(errors, best, atol=0, rtol=1e-12).nonzero().reshape(-1).tolist()


def weigh(members: Sequence[MemberPredictions], task: str, *, how: str, rounds: int = 25) -> Tensor:
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
        return select(predictions, targets, task, rounds=rounds)
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
    size, wide = len(predictions), predictions.double()
    best = weights = torch.full((size,), 1 / size, dtype=torch.float64)
    rate, least = 1.0, mean_loss(torch.einsum("m,mnc->nc", weights, wide), targets, task)
    for _ in range(_ITERATIONS):
        slope = _slope(wide, targets, task, best)
        weights = best * torch.exp(-rate * (slope - slope.min()))
        weights = weights / weights.sum()
        loss = mean_loss(torch.einsum("m,mnc->nc", weights, wide), targets, task)
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
