"""Which of two values is better, what several come to, and how many it takes to tell."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOISE = 2.0**-20
"""Differences smaller than this share of a value are the rounding of float32."""
LEAST_SEEDS, LEAST_SIGNS = 3, 6
"""Runs of a group from which on Student's t says anything, as of two its spread is luck; pairs that differ from which
on a test of ranks or signs can fall below 5 %."""
UNDECIDED = ("too few seeds", "may be chance")
"""What is said of runs that say too little."""
MOST_RUNS = 100
"""Runs of a group beyond which nobody is told to train more."""


def improves(value: float, best: float | None, *, mode: str, min_delta: float = 0.0) -> bool:
    """Tell whether `value` is better than `best` by more than `min_delta`.

    Anything finite improves on nothing (`best=None`); NaN never improves, so that it can never become the best.

    Args:
        value: The new value.
        best: The best so far; None when there is none.
        mode: `min` or `max`: which of two values is better.
        min_delta: Smallest difference that counts.
    """
    if math.isnan(value):
        return False
    if best is None:
        return True
    return (value - best if mode == "max" else best - value) > min_delta


def mean_and_sd(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and standard deviation (of a sample); the second is None for one value, both are for none."""
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def is_noise(difference: float, values: Sequence[float]) -> bool:
    """Tell whether a difference of values is no more than the rounding of float32."""
    return abs(difference) <= NOISE * max(map(abs, values))
