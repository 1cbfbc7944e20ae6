from __future__ import annotations

import pytest

from lightkit.common.errors import UserError
from lightkit.common.patterns import matching, named

NAMES = ["layer1.conv.weight", "layer1.bn.bias", "layer10.conv.weight", "head.weight"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("layer1.*", NAMES[:2]),
        ("*.weight", [NAMES[0], NAMES[2], NAMES[3]]),
        ("re:^layer\\d+\\.conv", [NAMES[0], NAMES[2]]),
        ("head.weight", [NAMES[3]]),
    ],
)
def test_globs_and_regular_expressions(pattern: str, expected: list[str]) -> None:
    assert matching(pattern, NAMES, key="x") == {pattern: expected}


def test_a_pattern_without_a_match_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"optim\.rules: the pattern matches nothing[\s\S]*nearest: head\.weight"):
        matching(["layer1.*", "head.weigth"], NAMES, key="optim.rules")


def test_a_broken_regular_expression_says_why() -> None:
    with pytest.raises(UserError, match="not a regular expression"):
        matching("re:(", NAMES, key="x")


def test_a_key_is_named_by_itself_or_by_what_is_above_it() -> None:
    assert named("optim.lr", ["optim.lr"])
    assert named("optim.lr", ["data", "optim"])
    assert named("optim.rules.0", ["optim.*"])
    assert not named("optim.lr", ["opti", "lr", "optim.lr.x"])
