from __future__ import annotations

import pytest

from lightkit.common.suggest import nearest


@pytest.mark.parametrize(
    ("typed", "valid", "best"),
    [
        ("learning_rat", ["learning_rate", "lr"], "learning_rate"),
        ("LR", ["lr", "momentum"], "lr"),
        ("optm.lr", ["optim.lr", "trainer.epochs"], "optim.lr"),
        ("trainer.lr", ["optim.lr", "model.width"], "optim.lr"),
    ],
)
def test_the_nearest_name_comes_first(typed: str, valid: list[str], best: str) -> None:
    assert nearest(typed, valid)[0] == best


def test_nothing_is_suggested_for_something_else() -> None:
    assert nearest("zebra", ["lr", "momentum"]) == []


def test_at_most_as_many_as_asked_for() -> None:
    assert len(nearest("name", [f"name{i}" for i in range(9)], count=2)) == 2


def test_last_parts_count_unless_they_are_a_number_or_a_letter() -> None:
    assert nearest("blocks.*.atention", ["blocks.1.norm", "blocks.1.attn"]) == ["blocks.1.attn"]
    assert nearest("stages.7", ["stages.1"]) == ["stages.1"]
    assert nearest("trainer.precision", ["trainer.test", "trainer.validate"]) == []
