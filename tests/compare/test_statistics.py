from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lightkit.compare.statistics import (
    binomial,
    bootstrap,
    fit_power_law,
    holm,
    mcnemar,
    paired,
    resolution,
    runs_needed,
    sign_test,
    unpaired,
    wilcoxon,
)


@pytest.mark.parametrize("n", [3, 5, 12, 40])
def test_the_t_test_and_its_interval_are_those_of_scipy(n: int) -> None:
    generator = np.random.default_rng(n)
    first, second = generator.normal(size=n), generator.normal(0.4, 1, size=n)
    found, wanted = paired(list(second - first), step=1e-6), stats.ttest_rel(second, first)
    interval = wanted.confidence_interval(0.95)
    assert found.t == pytest.approx(wanted.pvalue, rel=1e-10)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-8)


@pytest.mark.parametrize("n", [3, 6, 11, 30])
def test_signed_ranks_are_those_of_scipy(n: int) -> None:
    values = np.random.default_rng(n).normal(0.3, 1, size=n)
    assert wilcoxon(list(values)) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue, rel=1e-10)


def test_shared_ranks_and_zeros_are_exact_as_all_patterns_of_signs_say() -> None:
    values = [0.2, 0.1, -0.1, 0.3, 0.3, 0.0, 0.2]
    kept = np.array([value for value in values if value])
    ranks = stats.rankdata(np.abs(kept))
    signs = (np.arange(2 ** len(kept))[:, None] >> np.arange(len(kept))) & 1
    sums, seen = signs @ ranks, ranks[kept > 0].sum()
    assert wilcoxon(values) == pytest.approx(min(1, 2 * min((sums <= seen).mean(), (sums >= seen).mean())))
    assert wilcoxon([0.0, 0.0]) == 1


def test_the_sign_test_by_hand() -> None:
    assert sign_test([1, 1, 1, 0]) == pytest.approx(0.25)
    assert sign_test([1, -1, 1, 1, 1]) == pytest.approx(stats.binomtest(4, 5).pvalue)
    assert binomial(0, 0) == 1
    assert binomial(430, 1000) == pytest.approx(stats.binomtest(430, 1000).pvalue, rel=1e-9)


def test_the_unpaired_test_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=6), generator.normal(0.6, 2, size=9)
    found, wanted = unpaired(list(first), list(second), step=1e-6), stats.ttest_ind(second, first, equal_var=False)
    assert (found.n, found.paired, found.t) == (6, False, pytest.approx(wanted.pvalue, rel=1e-10))
    interval = wanted.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-8)


def test_two_pairs_have_no_p_and_no_spread_is_taken_for_smaller_than_a_step() -> None:
    two, equal, none = (
        paired([0.3, 0.4], step=0.1),
        paired([0.1, 0.1, 0.1 + 1e-17], step=0.1),
        paired([0.0] * 3, step=0),
    )
    assert (two.t, two.wilcoxon, two.sign, two.low) == (None, None, None, None)
    assert (equal.t, equal.equal) == (pytest.approx(2 * stats.t.sf(math.sqrt(3), 2)), False)
    assert (none.t, none.equal) == (1.0, True)


def test_a_step_is_a_row_or_the_smallest_difference_that_is_no_rounding() -> None:
    values = [0.5, 0.5 + 1e-8, 0.7, 1.0]
    assert (resolution(values, 50), resolution(values, None)) == (0.02, pytest.approx(0.2))
    assert resolution([0.5, 0.5], None) == pytest.approx(0.5 * 2**-20)


def test_shared_training_rows_widen_the_interval() -> None:
    values = [0.1, 0.3, 0.2, 0.25, 0.15]
    alone, shared = paired(values, step=1e-6), paired(values, step=1e-6, overlap=0.25)
    assert alone.high is not None
    assert shared.high is not None
    assert (shared.high - shared.mean) / (alone.high - alone.mean) == pytest.approx(math.sqrt((0.2 + 0.25) / 0.2))


@pytest.mark.parametrize("level", [0.05, 0.0125])
def test_as_many_runs_are_needed_as_find_the_difference_in_80_percent_of_cases(level: float) -> None:
    found = runs_needed(paired([0.1, 0.3, -0.05], step=1e-6), level=level)
    assert found is not None
    sd, mean = np.std([0.1, 0.3, -0.05], ddof=1), np.mean([0.1, 0.3, -0.05])
    draw = np.random.default_rng(0)
    for n, least, most in ((found, 0.79, 0.9), (found - 1, 0.6, 0.81)):
        p = stats.ttest_1samp(draw.normal(mean, sd, (20_000, n)), 0, axis=1).pvalue
        assert least < (p < level).mean() < most
    other = runs_needed(unpaired([0.1, 0.2, 0.05], [0.2, 0.4, 0.3], step=1e-6), level=level)
    assert other is not None
    assert 3 < other < 20


def test_what_no_number_of_runs_finds_is_told_and_two_need_a_third() -> None:
    values = [0.1, 0.3, -0.05]
    assert runs_needed(paired([0.0, 0.1, -0.1], step=1e-6), level=0.05) is None
    assert (
        runs_needed(paired(values, step=1e-6, overlap=0.25), level=0.05) is None
    )  # folds of the same rows say no more
    assert (
        runs_needed(paired(values[:2], step=1e-6), level=0.05)
        == runs_needed(paired(values[:1], step=1), level=0.05)
        == 3
    )


def test_mcnemar_by_hand() -> None:
    baseline = np.array([True] * 10 + [False] * 12)
    other = np.array([True] * 8 + [False] * 2 + [True] * 9 + [False] * 3)
    found = mcnemar(baseline, other)
    assert (found.gained, found.lost) == (9, 2)
    assert found.p == pytest.approx(stats.binomtest(2, 11).pvalue)  # 0.0654
    assert found.p == pytest.approx(2 * (1 + 11 + 55) / 2**11)


def test_the_bootstrap_is_that_of_scipy_and_the_same_each_time() -> None:
    values = np.random.default_rng(0).normal(0.2, 1, size=120)
    found = bootstrap(values)
    wanted = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=0.02)
    assert found == bootstrap(values)
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)


def test_the_bootstrap_of_right_and_wrong_draws_how_often_each_is_there() -> None:
    values = np.repeat([-1.0, 0.0, 1.0], [30, 60, 10])
    found, deviation = bootstrap(values), np.std(values) / 10
    assert found.mean == pytest.approx(-0.2)
    assert (found.low, found.high) == pytest.approx((-0.2 - 1.96 * deviation, -0.2 + 1.96 * deviation), abs=0.02)
    assert bootstrap(np.zeros(9)).p == 1


def test_of_few_rows_the_interval_reaches_as_far_as_that_of_student() -> None:
    values = np.array([0.1, 0.2, 0.15, 3.0, 0.12])
    found, wanted = bootstrap(values), stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.low <= wanted.low < wanted.high <= found.high
    assert bootstrap(np.ones(1)).mean == 1


def test_few_rows_that_differ_are_tested_as_mcnemar_does() -> None:
    values = np.repeat([-1.0, 0.0], [4, 14])
    assert bootstrap(values).p == pytest.approx(binomial(0, 4), abs=0.01)  # 0.125, whatever the resampled means say
    assert bootstrap(np.repeat([-1.0, 0.0], [8, 10])).p < 0.02


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, None, 0.03, 0.005]) == pytest.approx([0.03, 0.06, None, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([None]) == [None]


@pytest.mark.parametrize(("floor", "factor", "power"), [(0.1, 2.0, 0.5), (0.95, -0.8, 0.3), (0.9, 0.0, 1.0)])
def test_a_power_law_is_found(floor: float, factor: float, power: float) -> None:
    rows = [100, 200, 400, 800, 1600]
    law = fit_power_law(rows, [floor + factor * size**-power for size in rows])
    assert law(3200) == pytest.approx(floor + factor * 3200**-power, abs=1e-9)


def test_power_laws_see_no_gain_in_noise() -> None:
    """Five in a hundred flat curves may be called rising or falling, of 200 no more than 18 (p = 0.01)."""
    generator, rows, called = np.random.default_rng(0), [100, 200, 400, 800, 1600], 0
    for _ in range(200):
        laws = [fit_power_law(rows, generator.normal(0.9, 0.01, 5)) for _ in range(3)]
        gain = paired([law(3200) - law(1600) for law in laws], step=1e-6)
        assert gain.low is not None
        assert gain.high is not None
        called += gain.low > 0 or gain.high < 0
    assert called <= 18
