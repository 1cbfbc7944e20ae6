"""Fast geometric ensembles: short cycles of the rate after a whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.ensemble.methods import FastGeometric
from tests.ensemble.methods.running import done, facts, rates, refused, role, stored, train


def test_the_first_run_is_no_part_of_the_ensemble() -> None:
    method = FastGeometric(size=2, cycle_epochs=3)
    (start,) = method.next(facts(), [])
    (first,) = method.next(facts(), done(start))
    (second,) = method.next(facts(), done(start, first))
    assert [role(one).get("weights_of") for one in (start, first, second)] == [None, "00-start", "01-cycle"]
    assert first.values["trainer.epochs"] == 3
    assert list(method.next(facts(), done(start, first, second))) == []
    assert [one.member.name for one in method.counted(done(start, first, second))] == ["01-cycle", "02-cycle"]


def test_the_rate_of_a_cycle_is_a_triangle(tmp_path: Path) -> None:
    high, low = 0.5, 0.01
    more = [f"ensemble.high={high}", f"ensemble.low={low}", "ensemble.size=1", "ensemble.cycle_epochs=2"]
    train(tmp_path / "run", "ensemble=fast_geometric", *more)
    assert [member.name for member in stored(tmp_path / "run").members] == ["01-cycle"]
    found = rates(tmp_path / "run", "01-cycle")
    last = len(found) - 1
    expected = [0.01 * (low + (high - low) * (1 - abs(2 * step / last - 1))) for step in range(len(found))]
    assert found == pytest.approx(expected)


def test_a_cycle_needs_two_rates() -> None:
    refused(r"ensemble\.low: the rate of a cycle", "ensemble=fast_geometric", "ensemble.low=0.9")
    with pytest.raises(UserError, match="a smaller and a larger rate"):
        FastGeometric(low=0.5, high=0.5)
