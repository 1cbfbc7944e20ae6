"""How the predictions of members become one: soft and hard votes, means, and what a model's output is to them.

Predictions are `(M, N, C)` of M members, N rows, C outputs: probabilities, of regression the values. A member that
predicted nothing of a row has NaN there and has no say in it; a row that nobody predicted stays NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix

Weights = Sequence[float] | Tensor | None
"""A weight for each member, of any scale; None weighs all alike."""


def soft(predictions: Tensor, weights: Weights = None) -> Tensor:
    """Average the predictions `(M, N, C)` to `(N, C)`.

    Raises:
        UserError: The weights are not one for each member, or none is above 0.
    """
    share = _checked(weights, predictions)
    total = torch.zeros(predictions.shape[1:], dtype=torch.float64)
    present = torch.zeros(predictions.shape[1], 1, dtype=torch.float64)
    for member, weight in zip(predictions, share.tolist()):  # one at a time, as all in double need too much memory
        there = ~member.isnan().any(1, keepdim=True)
        total += torch.where(there, member, 0.0).double() * weight
        present += there * weight
    return (total / present).to(predictions.dtype)  # 0 / 0 is NaN


mean = soft
"""The rule of regression: the mean of the values."""


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

    What is NaN becomes class or label 0: mask it.
    """
    known = predictions.nan_to_num(0.0)
    return known.argmax(-1) if task == "multiclass" else (known > 0.5).long()


def as_probabilities(outputs: Tensor, task: str) -> Tensor:
    """Turn outputs of a model `(N,)` or `(N, C)` into float32 predictions `(N, C)`, by softmax or sigmoid."""
    outputs = outputs.detach().float()
    outputs = outputs[:, None] if outputs.ndim == 1 else outputs
    if task == "multiclass":
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
