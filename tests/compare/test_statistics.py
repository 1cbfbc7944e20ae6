from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lightkit.compare.statistics import binomial, bootstrap, holm, mcnemar, mean_and_sd, paired, sign_test, wilcoxon


def test_mean_and_sd_by_hand() -> None:
    assert mean_and_sd([]) == (None, None)
    assert mean_and_sd([2.0]) == (2.0, None)
    assert mean_and_sd([1.0, 2.0, 3.0]) == (2.0, 1.0)


@pytest.mark.parametrize("n", [2, 3, 5, 12, 40])
def test_the_t_test_and_its_interval_are_those_of_scipy(n: int) -> None:
    generator = np.random.default_rng(n)
    first, second = generator.normal(size=n), generator.normal(0.4, 1, size=n)
    found, wanted = paired(list(second - first)), stats.ttest_rel(second, first)
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


def test_one_pair_has_no_p_and_equal_differences_no_t() -> None:
    one, equal, none = paired([0.3]), paired([0.1, 0.1, 0.1 + 1e-17]), paired([0.0, 0.0])
    assert (one.t, one.wilcoxon, one.sign, one.low) == (None, None, None, None)
    assert (equal.t, equal.wilcoxon) == (None, 0.25)  # of eight patterns of signs two are as far out
    assert (none.t, none.sign) == (None, 1.0)


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


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, None, 0.03, 0.005]) == pytest.approx([0.03, 0.06, None, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([None]) == [None]
