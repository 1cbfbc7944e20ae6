"""Whether labels that mean nothing are reported as that, in a few repetitions of each path."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import noise
from benchmarks.noise import PATHS, Report


@pytest.mark.thorough(first=0)
@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_no_path_reports_more_than_chance(name: str, project: Path) -> None:
    found = noise.repeat(name, 4, seed=100)
    assert found.too_good <= found.most, found
    assert all(0.2 < report.value < 0.8 for report in found.reports), found


@pytest.mark.parametrize(("good", "holds"), [(3, True), (7, True), (8, False)])
def test_bars(monkeypatch: pytest.MonkeyPatch, good: int, holds: bool) -> None:
    reports = iter([Report(0.7, 0.6)] * good + [Report(0.5, 0.4)] * 50)
    monkeypatch.setattr(noise, "draw_rows", lambda *_: None)
    monkeypatch.setitem(noise.PATHS, "cv", lambda _: next(reports))
    assert noise.main(["cv"]) is holds


def test_an_interval_of_a_share() -> None:
    assert noise.share(0.5, 36).low == pytest.approx(0.329, abs=1e-3)
    assert noise.share(0.0, 36) == Report(0.0, 0.0)
