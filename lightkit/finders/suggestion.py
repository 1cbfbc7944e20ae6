"""What the losses of a rising learning rate say: which rate to take, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

SHARE = 0.1
"""Share of the rate with the lowest loss that is suggested: it leaves room to the rates that do harm, and most steps of
a run are made further on, where smaller ones are needed."""
_WIDTH = 0.03
"""Width of the smoothing, as a share of the steps."""
_START = 0.1
"""Share of the steps that tell where the loss began: with the smallest rates it stays there."""
_FALL = 0.02
"""Least fall of the loss, as a share of it, that is one."""


class LossAtRate(NamedTuple):
    """The loss at a learning rate: each step of a search has a rate of its own."""

    lr: float
    """The rate."""
    loss: float
    """Loss of the batch before the step."""


class Suggestion(NamedTuple):
    """A rate, and what speaks for it."""

    lr: float
    """The rate that is suggested."""
    reason: str
    """Why, in a sentence."""
    lowest: LossAtRate
    """Where the smoothed loss is lowest."""
    steepest: LossAtRate
    """Where it falls fastest."""
    start: float
    """The loss before the rate mattered."""
    harmful: float | None
    """The rate from which the loss rises; None where it did not up to the largest one."""


def suggest(points: Sequence[LossAtRate]) -> Suggestion | None:
    """Suggest a learning rate; None where the loss falls with none.

    Args:
        points: Rates, rising, each with its loss.
    """
    if len(points) < 5:
        return None
    losses, rates = smooth([point.loss for point in points]), [point.lr for point in points]
    first = max(2, round(_START * len(points)))
    start = sum(losses[:first]) / first
    lowest = min(range(len(losses)), key=losses.__getitem__)
    noise = math.sqrt(sum((point.loss - loss) ** 2 for point, loss in zip(points[:first], losses)) / first)
    fall = start - losses[lowest]
    if lowest == 0 or fall < max(noise, _FALL * abs(start)):
        return None
    slopes = [losses[i] - losses[i - 1] for i in range(1, lowest + 1)]
    steepest = 1 + min(range(len(slopes)), key=slopes.__getitem__)
    risen = max(losses[lowest] + 0.25 * fall, 0.0)
    harmful = next((rates[i] for i in range(lowest + 1, len(rates)) if losses[i] > risen), None)
    lr = float(f"{SHARE * rates[lowest]:.1e}")
    down = f"from {start:.3g} to {losses[lowest]:.3g} at {rates[lowest]:.2g}"
    after = f"rises from {harmful:.2g} on" if harmful else f"has not risen up to {rates[-1]:.2g}, the largest tried"
    return Suggestion(
        lr,
        f"a tenth of the rate with the lowest loss, which falls {down} and {after}",
        LossAtRate(rates[lowest], losses[lowest]),
        LossAtRate(rates[steepest], losses[steepest]),
        start,
        harmful,
    )


def smooth(values: Sequence[float]) -> list[float]:
    """Smooth values by the mean of their neighbours on both sides, weighted by a bell curve: nothing is shifted."""
    width = max(1.0, _WIDTH * len(values))
    reach = math.ceil(3 * width)
    weights = [math.exp(-0.5 * (distance / width) ** 2) for distance in range(reach + 1)]
    found = []
    for place in range(len(values)):
        near = range(max(0, place - reach), min(len(values), place + reach + 1))
        total = sum(weights[abs(place - other)] for other in near)
        found.append(sum(weights[abs(place - other)] * values[other] for other in near) / total)
    return found
