"""Whether `lightkit compare` calls equal models different no more often than p < 0.05 allows, in a few comparisons."""

from __future__ import annotations

import pytest
from scipy import stats

from benchmarks import compare_validity
from benchmarks.compare_validity import Shares

COMPARISONS = 40


@pytest.mark.thorough(first=0)
def test_equal_models_are_rarely_called_different_and_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_validity, "SEEDS", (2, 5))
    monkeypatch.setattr(compare_validity, "ROWS", (18, 180))
    most = stats.binom.ppf(0.9999, COMPARISONS, 0.05) / COMPARISONS
    least = stats.binom.ppf(0.0001, COMPARISONS, compare_validity.LEAST_FOUND) / COMPARISONS
    for one in compare_validity.table(COMPARISONS, seed=1):
        assert max(one.equal) <= most, one
        assert one.seeds > 2 or not any((*one.equal[:6], one.found, one.found_folds)), one
        assert one.seeds < 5 or one.found >= least, one


@pytest.mark.parametrize(("false", "found", "holds"), [(0.06, 0.7, True), (0.07, 0.9, False), (0.05, 0.6, False)])
def test_bars(monkeypatch: pytest.MonkeyPatch, false: float, found: float, holds: bool) -> None:
    monkeypatch.setattr(compare_validity, "table", lambda *_: [Shares(18, 5, *[0.0] * 8, false, found, 0.0, 0.0)])
    assert compare_validity.main([]) is holds
