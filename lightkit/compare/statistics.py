"""Tests of two configurations over the same or other seeds, and over the same rows. All p-values are two-sided.

Metrics that count rows take few values, and equal ones differ by the rounding of float32. So a test over seeds takes a
`step`, the smallest difference that means something: what is closer is equal, and no spread counts as smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lightkit.common.ranking import LEAST_SEEDS, LEAST_SIGNS, MOST_RUNS, NOISE, is_noise, mean_and_sd

LEVEL = 0.05
"""p below which a difference counts as more than chance."""
_RESAMPLES, _DRAWS_AT_ONCE = 10_000, 2_000_000


@dataclass(frozen=True)
class MeanTest:
    """What the runs of two groups say of the difference of their means.

    Attributes:
        paired: Whether runs with equal seeds were paired.
        n: Number of pairs, or of runs of the smaller group.
        mean: Mean difference.
        low: Lower end of its 95 % interval by Student's t; None for fewer than `LEAST_SEEDS`.
        high: Upper end.
        t: p of the paired t-test, or of Welch's; None for fewer than `LEAST_SEEDS`.
        wilcoxon: p of the exact signed-rank test; None for fewer than `LEAST_SIGNS` pairs that differ.
        sign: p of the exact sign test; None likewise.
        equal: Whether no pair differs by anything that means something.
        sd: Deviation that the t-test takes for that of differences; None for fewer than `LEAST_SEEDS`.
        overlap: As of `paired`.
    """

    paired: bool
    n: int
    mean: float
    low: float | None = None
    high: float | None = None
    t: float | None = None
    wilcoxon: float | None = None
    sign: float | None = None
    equal: bool = False
    sd: float | None = None
    overlap: float = 0.0


@dataclass(frozen=True)
class Bootstrap:
    """What resampled rows say of a mean difference.

    Attributes:
        n: Number of rows.
        mean: Mean difference.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p: Of the test that turns the signs of differences around at random, which is exact for ties and few rows.
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


def resolution(values: Sequence[float], rows: int | None) -> float:
    """Return the smallest difference of values that means something.

    Args:
        values: Of all runs that are compared; at least one.
        rows: Number of rows that were counted; None takes the smallest difference that is more than rounding.
    """
    ordered = sorted(values)
    gaps = (high - low for low, high in pairwise(ordered) if not is_noise(high - low, values))
    step = 1 / rows if rows else min(gaps, default=0.0)
    return max(step, NOISE * max(map(abs, values)))


def paired(differences: Sequence[float], *, step: float, overlap: float = 0.0) -> MeanTest:
    """Test whether differences of pairs are 0 on average.

    Args:
        differences: At least one.
        step: The smallest difference that means something.
        overlap: Test rows over training rows where runs are repeated on other splits of the same rows, 0 for one split.
            They have training rows in common, so that their mean is less certain than of as many independent runs
            (Nadeau & Bengio 2003, Inference for the generalization error).
    """
    n = len(differences)
    mean, sd = mean_and_sd(differences)
    assert mean is not None
    if sd is None or n < LEAST_SEEDS:
        return MeanTest(True, n, mean)
    kept = [value for value in differences if abs(value) > step / 2]
    signs = sign_test(kept) if len(kept) >= LEAST_SIGNS else None
    ranks = wilcoxon(kept, tolerance=step / 2) if len(kept) >= LEAST_SIGNS else None
    sd = max(sd, step)
    ends = _student(mean, sd * math.sqrt(1 / n + overlap), n - 1)
    return MeanTest(True, n, mean, *ends, ranks, signs, equal=not kept, sd=sd, overlap=overlap)


def unpaired(baseline: Sequence[float], other: Sequence[float], *, step: float, overlap: float = 0.0) -> MeanTest:
    """Test whether two groups of runs with other seeds have the same mean, by Welch's test.

    Args:
        baseline: At least one value.
        other: At least one value.
        step: As of `paired`.
        overlap: As of `paired`.
    """
    n = min(len(baseline), len(other))
    (first, sd), (second, other_sd) = mean_and_sd(baseline), mean_and_sd(other)
    assert first is not None
    assert second is not None
    if sd is None or other_sd is None or n < LEAST_SEEDS:
        return MeanTest(False, n, second - first)
    parts = [max(sd, step) ** 2 / len(baseline), max(other_sd, step) ** 2 / len(other)]
    of_both = sum(part**2 / (len(each) - 1) for part, each in zip(parts, (baseline, other)))
    freedom = sum(parts) ** 2 / of_both if of_both else 1.0
    error = math.sqrt(sum(part * (1 + len(each) * overlap) for part, each in zip(parts, (baseline, other))))
    ends = _student(second - first, error, freedom)
    return MeanTest(False, n, second - first, *ends, sd=math.hypot(max(sd, step), max(other_sd, step)), overlap=overlap)


def runs_needed(test: MeanTest, *, level: float, power: float = 0.8) -> int | None:
    """Return how many runs of each group the t-test needs to find a difference as large as this.

    The power is that of the noncentral t distribution (Cohen 1988, Statistical power analysis). Where the spread is not
    known yet, it is the number from which on there is a test at all.

    Args:
        test: What the runs say so far.
        level: p below which a difference counts.
        power: In what share of the cases it is to be found.

    Returns:
        The number of runs in all; None for more than `MOST_RUNS`.
    """
    if test.sd is None:
        return LEAST_SEEDS
    from scipy.special import nctdtr, stdtrit

    runs = np.arange(test.n + 1, MOST_RUNS + 1)
    freedom, error = (runs - 1) * (1 if test.paired else 2), test.sd * np.sqrt(1 / runs + test.overlap)
    missed = nctdtr(freedom, abs(test.mean) / error, stdtrit(freedom, 1 - level / 2))
    return next((int(n) for n, share in zip(runs, missed) if share <= 1 - power), None)


def _student(mean: float, error: float, freedom: float) -> tuple[float, float, float]:
    """Return the ends of the 95 % interval, and p."""
    if error == 0:
        return mean, mean, float(mean == 0)
    from scipy.special import stdtr, stdtrit  # takes a third of a second

    half = float(stdtrit(freedom, 0.975)) * error
    return mean - half, mean + half, 2 * float(stdtr(freedom, -abs(mean / error)))


def wilcoxon(differences: Sequence[float], *, tolerance: float = 0.0) -> float:
    """Return p of Wilcoxon's signed-rank test, exact for any number of pairs.

    Args:
        differences: Of pairs; those of equal size share their rank, and zeros drop out.
        tolerance: Sizes that differ by no more than this are equal.
    """
    kept = [value for value in differences if value != 0]
    if not kept:
        return 1.0
    doubled = _doubled_ranks([abs(value) for value in kept], tolerance)
    ways = np.zeros(sum(doubled) + 1)  # shares of the sign patterns by their sum of positive ranks
    ways[0] = 1.0
    for rank in doubled:
        moved = np.zeros_like(ways)
        moved[rank:] = ways[: len(ways) - rank]
        ways = (ways + moved) / 2
    positive = sum(rank for rank, value in zip(doubled, kept) if value > 0)
    return min(1.0, 2 * float(min(ways[: positive + 1].sum(), ways[positive:].sum())))


def _doubled_ranks(sizes: Sequence[float], tolerance: float) -> list[int]:
    """Return twice the rank of each size, a whole number also for the mean of shared ranks."""
    tolerance = max(tolerance, NOISE * max(sizes))
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
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(successes, n - successes), n, 0.5)))


def bootstrap(differences: NDArray[np.float64]) -> Bootstrap:
    """Resample the rows to see how much a mean difference depends on them; the same rows give the same answer.

    Of few rows percentiles of the resampled means are too narrow. So they are those of Hesterberg (2015,
    https://doi.org/10.1080/00031305.2015.1089789), and the interval reaches at least as far as Student's t does.

    Args:
        differences: `(N,)`: of each row.
    """
    from scipy.special import ndtr, stdtrit

    n, generator = len(differences), np.random.default_rng(0)
    values, counts = np.unique(differences, return_counts=True)
    if len(values) * 4 <= n:  # few values, as of right and wrong: how often each is drawn says all
        means = generator.multinomial(n, counts / n, size=_RESAMPLES) @ values / n
    else:
        step = max(1, _DRAWS_AT_ONCE // n)
        sizes = [min(step, _RESAMPLES - start) for start in range(0, _RESAMPLES, step)]
        means = np.concatenate([differences[generator.integers(0, n, (size, n))].mean(1) for size in sizes])
    mean, p = float(differences.mean()), _turned_around(differences, generator)
    reach = float(stdtrit(max(1, n - 1), 0.975)) * math.sqrt(n / max(1, n - 1))
    low, high = np.quantile(means, ndtr([-reach, reach])).tolist()
    half = reach * float(differences.std()) / math.sqrt(n)
    return Bootstrap(n, mean, min(low, mean - half), max(high, mean + half), p)


def _turned_around(differences: NDArray[np.float64], generator: np.random.Generator) -> float:
    """Return how often differences with random signs have a sum as far from 0, the given ones counted once."""
    sizes, counts = np.unique(np.abs(differences[differences != 0]).round(12), return_counts=True)
    seen = abs(float(differences.sum()))
    near = seen - NOISE * float(np.abs(differences).sum())
    step, farther = max(1, _DRAWS_AT_ONCE // max(1, len(sizes))), 0
    for start in range(0, _RESAMPLES, step):
        drawn = generator.binomial(counts, 0.5, size=(min(step, _RESAMPLES - start), len(sizes)))
        farther += int((np.abs((2 * drawn - counts) @ sizes) >= near).sum())
    return (farther + 1) / (_RESAMPLES + 1)


def fit_power_law(rows: Sequence[int], values: Sequence[float]) -> Callable[[float], float]:
    """Fit `floor + factor * rows ** -exponent` by least squares, with an exponent from 0.1 to 2.

    Errors fall so with the number of training rows, most of them with exponents below 1 (Hestness et al. 2017,
    https://arxiv.org/abs/1712.00409; Viering & Loog 2021, https://arxiv.org/abs/2103.10948).

    Args:
        rows: Four or more numbers of rows.
        values: What a metric came to with each.

    Returns:
        The metric for a number of rows.
    """
    n = np.asarray(rows, dtype=float)
    fits = [(*np.polyfit(n**-power, values, 1, full=True)[:2], power) for power in np.linspace(0.1, 2.0, 39)]
    (factor, floor), _, power = min(fits, key=lambda fit: float(fit[1].sum()))
    return lambda count: float(floor + factor * count**-power)


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
