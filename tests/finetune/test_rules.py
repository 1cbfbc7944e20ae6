"""Settings of single parameters: each of them asked for once only."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.common.errors import UserError
from tests.finetune.preparing import prepared, transformer


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([{"match": "@head", "lr": 0.1}, {"match": "head.bias", "lr_scale": 2.0}], "two rules set the learning rate"),
        ([{"match": "@head", "weight_decay": 0.1}, {"match": "head", "weight_decay": 0.0}], "the weight decay of head"),
        ([{"match": "embed", "lr": 0.1}], "never train"),
    ],
)
def test_rules_that_contradict_are_refused(rules: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(UserError, match=text):
        prepared(transformer(), freeze=["embed"], rules=rules)


def test_rules_that_set_different_things_of_one_parameter_go_together() -> None:
    found = prepared(
        transformer(),
        head={"lr": 0.5},
        rules=[{"match": "@head", "weight_decay": 0.0, "name": "h"}, {"match": "@bias", "warmup_steps": 3}],
    )
    assert [rule["key"] for rule in found.rules] == ["finetune.head", "finetune.rules[0]", "finetune.rules[1]"]


def test_a_rate_of_the_head_beside_a_rule_for_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"finetune\.head and finetune\.rules\[0\]"):
        prepared(transformer(), head={"lr": 0.5}, rules=[{"match": "head.weight", "lr": 0.1}])
