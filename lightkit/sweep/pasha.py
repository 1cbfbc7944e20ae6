"""When two rungs agree on the order of jobs: the stop rule of PASHA (Bohdal et al. 2023, arXiv 2207.06940)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

SHARE = 0.9
"""Share of the distances between jobs whose curves cross that count as noise."""


def agree(before: Mapping[str, float], now: Mapping[str, float], *, mode: str, noise: float = 0.0) -> bool:
    """Tell whether jobs have the same order at two rungs, but for differences within the noise.

    Args:
        before: The value of each job at the earlier rung.
        now: At the later one.
        mode: Whether `min` or `max` is better.
        noise: Jobs whose values at the earlier rung differ by no more may have changed places.
    """
    sign = -1 if mode == "max" else 1
    earlier, later = (sorted(values, key=lambda name: sign * values[name]) for values in (before, now))
    return all(abs(before[one] - before[other]) <= noise for one, other in zip(earlier, later))


def noise_of(curves: Sequence[Mapping[float, float]]) -> float:
    """Estimate the noise of values from jobs that overtake each other again and again.

    Of every two jobs whose order changes and changes back, it takes the distance at the last point that both have.

    Args:
        curves: The values of each job by how far it was.

    Returns:
        A distance that nine in ten of those do not exceed; 0 where no jobs overtake each other twice.
    """
    distances = list[float]()
    for one, other in combinations(curves, 2):
        gaps = [one[at] - other[at] for at in sorted({*one} & {*other})]
        signs = [gap > 0 for gap in gaps if gap != 0 and math.isfinite(gap)]
        if sum(a != b for a, b in pairwise(signs)) >= 2:
            distances.append(abs(gaps[-1]))
    known = sorted(filter(math.isfinite, distances))
    return known[math.ceil(SHARE * len(known)) - 1] if known else 0.0
