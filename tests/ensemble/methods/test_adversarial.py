"""Adversarial training: members that learn from worst changes of their inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.ensemble.methods import Adversarial
from tests.ensemble.methods.running import facts, predictions, role, train


def test_every_member_has_the_size_of_the_change() -> None:
    members = Adversarial(size=2, epsilon=0.1).next(facts(), [])
    assert [role(member) for member in members] == [{"epsilon": 0.1}] * 2


@pytest.mark.parametrize("inputs", [(-0.1, 1.0), (0.0, 1.1), None])
def test_inputs_lie_between_0_and_1(inputs: tuple[float, float] | None) -> None:
    with pytest.raises(UserError, match=r"data\.normalize: adversarial training needs inputs in \[0, 1\]"):
        Adversarial().check(facts(inputs=inputs))
    Adversarial().check(facts(inputs=(0.0, 1.0)))


def test_its_members_are_others_than_those_of_a_vote(tmp_path: Path) -> None:
    options = ["ensemble.size=1", "data.normalize=minmax"]
    train(tmp_path / "adversarial", "ensemble=adversarial", "ensemble.epsilon=0.2", *options)
    train(tmp_path / "voting", "ensemble=voting", *options)
    assert not predictions(tmp_path / "adversarial", 1).equal(predictions(tmp_path / "voting", 1))


def test_scaled_inputs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="from -"):
        train(tmp_path / "run", "ensemble=adversarial")
    assert not (tmp_path / "run").exists()
