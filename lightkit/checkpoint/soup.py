"""Averages of the weights of several models of one architecture: model soups (https://arxiv.org/abs/2203.05482)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightkit.checkpoint.compare import format_text, listed, same_bits, shape_text
from lightkit.common.errors import UserError

State = Mapping[str, torch.Tensor]
_COUNTER = "num_batches_tracked"
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Member:
    """The weights of one model."""

    label: str
    """What to call it."""
    state: State
    """Its tensors by name."""


@dataclass(frozen=True)
class Soup:
    """The average of some models."""

    state: dict[str, torch.Tensor]
    """Tensors by name; tied ones are one tensor still."""
    shares: tuple[tuple[str, float], ...]
    """Label of each member, and its share."""
    statistics: tuple[str, ...] = ()
    """Names of running means and variances that were averaged, too: they are not those of the averaged weights."""


def average(members: Sequence[Member], weights: Sequence[float] | None = None) -> Soup:
    """Compute the weighted mean of every tensor of fractions, in double precision.

    Whole numbers and flags must agree; of the counters of batch norm the largest is taken.

    Args:
        members: At least one; all have tensors of the same names and shapes.
        weights: How much each counts, 0 or above; divided by their sum. None: all the same.

    Raises:
        UserError: Names, shapes or whole numbers differ, a mean is not finite, or the weights cannot be used.
    """
    shares = _shares(members, weights)
    _check_alike(members)
    means: dict[Any, torch.Tensor] = {}
    state, statistics = dict[str, torch.Tensor](), list[str]()
    for name in members[0].state:
        tensors = [member.state[name] for member in members]
        place: Any = tuple((tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors)
        place = place if tensors[0].numel() else name  # an empty tensor has no place
        if place not in means:
            means[place] = _mean(name, tensors, shares, members)
        state[name] = means[place]
        if name.endswith(_STATISTICS) and not _equal(tensors):
            statistics.append(name)
    labels = (member.label for member in members)
    return Soup(state, tuple(zip(labels, shares)), tuple(statistics))


def _shares(members: Sequence[Member], weights: Sequence[float] | None) -> list[float]:
    if not members:
        raise UserError("there is nothing to average")
    given = [1.0] * len(members) if weights is None else list(weights)
    usable = len(given) == len(members) and all(math.isfinite(weight) and weight >= 0 for weight in given)
    if not usable or not sum(given) > 0:
        expected = f"{len(members)} numbers, one a model: 0 or above, and one of them above 0"
        raise UserError("the models cannot be weighted so", argument="weights", expected=expected, received=given)
    return [weight / sum(given) for weight in given]


def _check_alike(members: Sequence[Member]) -> None:
    first = members[0]
    lines: list[str] = []
    for other in members[1:]:
        one, two = first.state, other.state
        lines += [f"{name} is missing in {other.label}" for name in one if name not in two]
        lines += [f"{name} is in {other.label} only" for name in two if name not in one]
        both = [(name, _text(one[name]), _text(two[name])) for name in one if name in two]
        lines += [f"{name} is {here} here and {there} in {other.label}" for name, here, there in both if here != there]
    if lines:
        what = f"only models of one architecture can be averaged{listed(lines)}"
        raise UserError(what, key=first.label, family="weights")


def _text(tensor: torch.Tensor) -> str:
    kind = "fractions" if tensor.is_floating_point() else "complex" if tensor.is_complex() else format_text(tensor)
    return f"{shape_text(tensor.shape)} {kind}"


def _mean(
    name: str, tensors: Sequence[torch.Tensor], shares: Sequence[float], members: Sequence[Member]
) -> torch.Tensor:
    first = tensors[0].detach().cpu()
    if _equal(tensors):
        return first.clone()  # to the bit, and infinities stay what they are
    if name.endswith(_COUNTER):
        return torch.stack([tensor.detach().cpu() for tensor in tensors]).amax(0)
    if not (first.is_floating_point() or first.is_complex()):
        other = next(m.label for m, tensor in zip(members, tensors) if not _equal([tensors[0], tensor]))
        what = f"{name} holds {format_text(first)} values, which cannot be averaged, and they differ"
        raise UserError(what, key=members[0].label, received=other, family="weights")
    wide = torch.complex128 if first.is_complex() else torch.float64
    total = torch.zeros(first.shape, dtype=wide)
    for tensor, share in zip(tensors, shares):
        if share:  # 0 times infinity is no number
            total += tensor.detach().cpu().to(wide) * share
    if not torch.isfinite(total).all():
        fix = "leave out the model that went wrong: lightkit ckpt diff shows it"
        raise UserError(f"the mean of {name} is not finite", key=members[0].label, fix=fix, family="weights")
    kind = tensors[0].dtype
    for tensor in tensors:
        kind = torch.promote_types(kind, tensor.dtype)
    return total.to(kind)


def _equal(tensors: Sequence[torch.Tensor]) -> bool:
    return all(same_bits(tensors[0], tensor) for tensor in tensors[1:])
