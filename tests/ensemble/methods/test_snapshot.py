"""Snapshots: one run in cycles of a cosine rate."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.ensemble.methods import Snapshot
from tests.ensemble.methods.running import done, facts, rates, refused, role, saved, train


def test_each_cycle_goes_on_from_the_last_weights() -> None:
    method = Snapshot(size=3)
    (first,) = method.next(facts(), [])
    assert first.values["trainer.epochs"] == 2
    assert role(first)["weights_of"] is None
    (second,) = method.next(facts(), done(first))
    assert role(second)["weights_of"] == "00-cycle"
    assert second.values["trainer.test"] == "last"


def test_the_rate_starts_anew_in_each_cycle(tmp_path: Path) -> None:
    train(tmp_path / "run", "ensemble=snapshot", "ensemble.size=2", "trainer.epochs=4")
    for name in ("00-cycle", "01-cycle"):
        assert saved(tmp_path / "run", name)["trainer"]["epochs"] == 2
        found = rates(tmp_path / "run", name)
        expected = [0.01 * (math.cos(math.pi * step / len(found)) + 1) / 2 for step in range(len(found))]
        assert found == pytest.approx(expected, rel=0.05, abs=2e-3)
        assert found[0] == pytest.approx(0.01)


def test_cycles_that_do_not_divide_the_run_are_refused() -> None:
    refused(r"trainer\.epochs: the cycles", "ensemble=snapshot", "ensemble.size=5", "trainer.epochs=7")
    refused(r"trainer\.steps: the cycles", "ensemble=snapshot", "ensemble.size=2", "trainer.steps=4")
    with pytest.raises(UserError, match=r"trainer\.epochs: the cycles do not divide"):
        Snapshot(size=4).check(facts())
