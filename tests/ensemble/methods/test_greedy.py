"""Greedy selection of the members that together do best."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.ensemble.greedy import weigh
from lightkit.ensemble.methods import Greedy, Voting
from lightkit.ensemble.oof import MemberPredictions
from tests.ensemble.methods.running import facts, stored, train


def test_its_members_are_those_of_a_vote() -> None:
    assert Greedy(size=2).next(facts(), []) == Voting(size=2).next(facts(), [])


def test_weights_are_shares_of_the_selections(tmp_path: Path) -> None:
    train(tmp_path / "run", "ensemble=greedy", "ensemble.size=3", "ensemble.rounds=4")
    shares = [member.weight for member in stored(tmp_path / "run").members]
    assert sum(shares) == pytest.approx(1)
    folders = [tmp_path / "run" / "members" / name / "oof.safetensors" for name in ("00", "01", "02")]
    own = [MemberPredictions.read(path) for path in folders]
    assert weigh(own, "multiclass", how="greedy", rounds=4).tolist() == shares
