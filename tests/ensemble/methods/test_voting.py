"""Voting: members that differ in their seed, and how their predictions become one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.ensemble.methods import Voting
from tests.ensemble.methods.running import facts, predictions, refused, role, saved, stored, train


def test_members_have_seeds_of_their_own_and_all_rows() -> None:
    members = Voting(size=3).next(facts(), [])
    assert [member.name for member in members] == ["00", "01", "02"]
    seeds = [member.values["seed"] for member in members]
    assert len({*seeds, 3}) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert [role(member) for member in members] == [{}] * 3
    assert seeds[:2] == [member.values["seed"] for member in Voting(size=2).next(facts(), [])], "a larger one grows"
    assert seeds != [member.values["seed"] for member in Voting(size=3).next(facts(seed=4), [])]


def test_unlike_members_are_taken_once_or_so_often_as_size_says() -> None:
    unlike = facts(members=[("mlp", {"optim.lr": 0.1}), ("wide", {"seed": 7})])
    names = [member.name for member in Voting().next(unlike, [])]
    assert names == ["00-mlp", "01-wide"]
    twice = Voting(size=2).next(unlike, [])
    assert [member.name for member in twice] == ["00-mlp", "01-wide", "02-mlp", "03-wide"]
    assert twice[0].values["optim.lr"] == 0.1
    assert twice[1].values["seed"] == 7


def test_a_vote_is_the_mean_of_the_probabilities(tmp_path: Path) -> None:
    found = train(tmp_path / "run", "ensemble=voting", "ensemble.size=2")
    own = [predictions(tmp_path / "run" / "members" / name, 1) for name in ("00", "01")]
    torch.testing.assert_close(predictions(tmp_path / "run", 1), (own[0] + own[1]) / 2)
    assert [member.weight for member in stored(tmp_path / "run").members] == [0.5, 0.5]
    assert stored(tmp_path / "run").rule == "soft"
    assert set(found["members"]) == {"00", "01"}
    assert saved(tmp_path / "run", "01")["ensemble"]["_target_"].endswith("NoEnsemble")
    assert not torch.equal(own[0], own[1])


@pytest.mark.thorough
def test_a_hard_vote_is_the_share_of_members(tmp_path: Path) -> None:
    train(tmp_path / "run", "ensemble=voting", "ensemble.size=3", "ensemble.vote=hard", "ensemble.weights=validation")
    shares = [member.weight for member in stored(tmp_path / "run").members]
    assert sum(shares) == pytest.approx(1)
    expected = torch.zeros_like(predictions(tmp_path / "run", 2))
    for share, name in zip(shares, ("00", "01", "02")):
        chosen = predictions(tmp_path / "run" / "members" / name, 2).argmax(1)
        expected[torch.arange(len(chosen)), chosen] += share
    torch.testing.assert_close(predictions(tmp_path / "run", 2), expected)


@pytest.mark.parametrize("method", ["voting", "bagging"])
def test_numbers_are_not_voted_for(method: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="numbers cannot be voted for") as told:
        train(tmp_path / "run", f"ensemble={method}", "ensemble.vote=hard", "data=diabetes")
    assert (told.value.key, told.value.exit_code) == ("ensemble.vote", 2)
    assert not (tmp_path / "run").exists()


def test_what_the_configuration_shows_is_refused_before_anything_is_built() -> None:
    refused(r"ensemble\.size: out of range", "ensemble=voting", "ensemble.size=0")
    refused(r"checkpoint\.enabled: an ensemble is made of the checkpoints", "ensemble=voting", "checkpoint=none")
    refused(r"ensemble\.member\.rows: the method", "ensemble=voting", "ensemble.member.rows=bootstrap")
