"""Which of two values is better."""

from __future__ import annotations

import math


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
