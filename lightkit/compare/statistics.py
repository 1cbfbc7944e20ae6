"""Tests of paired values: the same seeds, or the same rows, under two configurations. All p-values are two-sided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SAME = 1e-12
"""Differences closer to each other, relative to the largest, are rounding."""
_DRAWS_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class PairedTest:
    """What the differences of pairs say.

    Attributes:
        n: Number of pairs.
        mean: Mean difference.
        low: Lower end of its 95 % interval by Student's t; None without a spread.
        high: Upper end.
        t: p of the paired t-test; None for one pair, and where all differences are equal.
        wilcoxon: p of the exact signed-rank test; None for one pair.
        sign: p of the exact sign test; None for one pair.
    """

    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    t: float | None = None
    wilcoxon: float | None = None
    sign: float | None = None


@dataclass(frozen=True)
class Bootstrap:
    """What resampled rows say of a mean difference.

    Attributes:
        n: Number of rows.
        mean: Mean difference.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p: Twice the smaller share of means on one side of 0.
    """

    n: int
    mean: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class McNemar:
    """Rows that one of two models has right and the other wrong.

    Attributes:
        gained: Rows that the baseline has wrong.
        lost: Rows that the baseline has right.
        p: Of the exact test.
    """

    gained: int
    lost: int
    p: float


def mean_and_sd(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return mean and standard deviation (of a sample); the second is None for one value, both are for none."""
    if not values:
        return None, None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def paired(differences: Sequence[float]) -> PairedTest:
    """Test whether differences of pairs are 0 on average. One pair says nothing about chance, so it has no p.

    Args:
        differences: At least one.
    """
    n = len(differences)
    mean, sd = mean_and_sd(differences)
    assert mean is not None
    if sd is None:
        return PairedTest(n, mean)
    ranks, signs = wilcoxon(differences), sign_test(differences)
    if sd <= _SAME * max(map(abs, differences)):  # all alike: there is no spread to compare with
        return PairedTest(n, mean, wilcoxon=ranks, sign=signs)
    from scipy.special import stdtr, stdtrit  # takes a third of a second

    error = sd / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.975)) * error
    return PairedTest(n, mean, mean - half, mean + half, 2 * float(stdtr(n - 1, -abs(mean / error))), ranks, signs)


def wilcoxon(differences: Sequence[float]) -> float:
    """Return p of Wilcoxon's signed-rank test, exact for any number of pairs.

    Args:
        differences: Of pairs; those of equal size share their rank, and zeros drop out.
    """
    kept = [value for value in differences if value != 0]
    if not kept:
        return 1.0
    doubled = _doubled_ranks([abs(value) for value in kept])
    ways = np.zeros(sum(doubled) + 1)  # shares of the sign patterns by their sum of positive ranks
    ways[0] = 1.0
    for rank in doubled:
        moved = np.zeros_like(ways)
        moved[rank:] = ways[: len(ways) - rank]
        ways = (ways + moved) / 2
    positive = sum(rank for rank, value in zip(doubled, kept) if value > 0)
    return min(1.0, 2 * float(min(ways[: positive + 1].sum(), ways[positive:].sum())))


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Return twice the rank of each size, a whole number also for the mean of shared ranks."""
    tolerance = _SAME * max(sizes)
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    ranks, begin = [0] * len(sizes), 0
    while begin < len(order):
        end = begin
        while end + 1 < len(order) and sizes[order[end + 1]] - sizes[order[begin]] <= tolerance:
            end += 1
        for place in order[begin : end + 1]:
            ranks[place] = begin + end + 2
        begin = end + 1
    return ranks


def sign_test(differences: Sequence[float]) -> float:
    """Return p of the exact sign test; zeros drop out."""
    positive = sum(value > 0 for value in differences)
    return binomial(positive, positive + sum(value < 0 for value in differences))


def mcnemar(baseline: NDArray[np.bool_], other: NDArray[np.bool_]) -> McNemar:
    """Test whether two models are right equally often on the same rows.

    Args:
        baseline: `(N,)`: whether the baseline is right.
        other: `(N,)`: whether the other one is.
    """
    gained, lost = int((other & ~baseline).sum()), int((baseline & ~other).sum())
    return McNemar(gained, lost, binomial(gained, gained + lost))


def binomial(successes: int, n: int) -> float:
    """Return p of so many successes where both ends are equally likely; 1 for no trial."""
    if n == 0:
        return 1.0
    fewest = min(successes, n - successes)
    log_half = n * math.log(2)
    terms = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - log_half for k in range(fewest + 1))
    return min(1.0, 2 * math.fsum(map(math.exp, terms)))


def bootstrap(differences: NDArray[np.float64], *, resamples: int = 10_000, seed: int = 0) -> Bootstrap:
    """Resample the rows to see how much a mean difference depends on them.

    Args:
        differences: `(N,)`: of each row.
        resamples: How often.
        seed: Of the resampling, so that the same rows give the same answer.
    """
    n, generator = len(differences), np.random.default_rng(seed)
    values, counts = np.unique(differences, return_counts=True)
    if len(values) * 4 <= n:  # few values, as of right and wrong: how often each is drawn says all
        means = generator.multinomial(n, counts / n, size=resamples) @ values / n
    else:
        step = max(1, _DRAWS_AT_ONCE // n)
        sizes = [min(step, resamples - start) for start in range(0, resamples, step)]
        means = np.concatenate([differences[generator.integers(0, n, (size, n))].mean(1) for size in sizes])
    low, high = (float(value) for value in np.quantile(means, [0.025, 0.975]))
    fewest = min((means <= 0).sum(), (means >= 0).sum())
    p = min(1.0, 2 * (int(fewest) + 1) / (resamples + 1))
    return Bootstrap(n, float(differences.mean()), low, high, p)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values of several comparisons by Holm's method, so that one false alarm in all of them stays as rare.

    Args:
        values: The p-values; None where there was no test, which is no comparison.
    """
    order = sorted((value, place) for place, value in enumerate(values) if value is not None)
    adjusted, largest = list[float | None](None for _ in values), 0.0
    for rank, (value, place) in enumerate(order):
        largest = max(largest, min(1.0, value * (len(order) - rank)))
        adjusted[place] = largest
    return adjusted
