"""What a pattern means: over made names, and over those of real networks in `tests/finetune/test_globs.py`."""

from __future__ import annotations

import pytest

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern, named

NAMES = [
    "conv1.weight",
    "layer1.conv1.weight",
    "layer1.bn.bias",
    "layer10.conv1.weight",
    "0.weight",
    "10.weight",
    "head.weight",
    "head.bias",
]


@pytest.mark.parametrize(
    ("pattern", "fits", "covers"),
    [
        ("conv1", [], ["conv1.weight"]),
        ("conv1.weight", ["conv1.weight"], ["conv1.weight"]),
        ("*conv1", [], ["conv1.weight", "layer1.conv1.weight", "layer10.conv1.weight"]),
        ("*.conv1.*", ["layer1.conv1.weight", "layer10.conv1.weight"], None),
        ("layer1", [], ["layer1.conv1.weight", "layer1.bn.bias"]),
        ("layer1.*", ["layer1.conv1.weight", "layer1.bn.bias"], None),
        ("layer?.*", ["layer1.conv1.weight", "layer1.bn.bias"], None),
        ("layer[0-4]*.bn.*", ["layer1.bn.bias"], None),
        ("0.*", ["0.weight"], None),
        ("0", [], ["0.weight"]),
        ("?0", [], ["10.weight"]),
        ("*", NAMES, None),
        ("weight", [], []),
        ("bias", [], []),
        ("HEAD.*", [], []),
        ("head.weigh", [], []),
        ("ead.weight", [], []),
        (".*", [], []),
        ("re:conv1", ["conv1.weight", "layer1.conv1.weight", "layer10.conv1.weight"], None),
        ("re:^conv1", ["conv1.weight"], None),
        ("re:1$", [], ["conv1.weight", "layer1.conv1.weight", "layer1.bn.bias", "layer10.conv1.weight"]),
        ("re:bias$", ["layer1.bn.bias", "head.bias"], None),
        (r"re:^layer\d+\.conv", ["layer1.conv1.weight", "layer10.conv1.weight"], None),
        ("re:^(head|0)$", [], ["0.weight", "head.weight", "head.bias"]),
    ],
)
def test_what_a_pattern_fits_and_what_it_covers(pattern: str, fits: list[str], covers: list[str] | None) -> None:
    found = Pattern(pattern)
    assert [name for name in NAMES if found.fits(name)] == fits
    assert [name for name in NAMES if found.covers(name)] == (fits if covers is None else covers)


def test_a_pattern_offers_no_other_way_to_be_matched() -> None:
    offered = {name for name in dir(Pattern("a.*")) if not name.startswith("_")}
    assert offered == {"text", "fits", "covers"}


def test_a_broken_regular_expression_says_why_and_where() -> None:
    with pytest.raises(UserError, match=r"optim\.rules\[0\]: not a regular expression: missing \)"):
        Pattern("re:(", key="optim.rules[0]")


def test_a_key_is_named_by_itself_or_by_what_is_above_it() -> None:
    assert named("optim.lr", ["optim.lr"])
    assert named("optim.lr", ["data", "optim"])
    assert named("optim.rules.0", ["optim.*"])
    assert named("optim.lr", ["re:^optim"])
    assert not named("optim.lr", ["opti", "lr", "optim.lr.x"])
