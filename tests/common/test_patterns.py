"""What a pattern means: over made names, and over those of real networks in `tests/finetune/test_globs.py`."""

from __future__ import annotations

import pytest

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern, named

NAMES = "conv1.weight layer1.conv1.weight layer1.bn.bias layer10.conv1.weight 0.weight 10.weight head.weight head.bias"


PATTERNS = r"""
conv1 : : conv1.weight
conv1.weight : conv1.weight
*conv1 : : conv1.weight layer1.conv1.weight layer10.conv1.weight
*.conv1.* : layer1.conv1.weight layer10.conv1.weight
layer1 : : layer1.conv1.weight layer1.bn.bias
layer1.* : layer1.conv1.weight layer1.bn.bias
layer?.* : layer1.conv1.weight layer1.bn.bias
layer[0-4]*.bn.* : layer1.bn.bias
0.* : 0.weight
0 : : 0.weight
?0 : : 10.weight
weight : :
HEAD.* : :
head.weigh : :
ead.weight : :
.* : :
re:conv1 : conv1.weight layer1.conv1.weight layer10.conv1.weight
re:^conv1 : conv1.weight
re:1$ : : conv1.weight layer1.conv1.weight layer1.bn.bias layer10.conv1.weight
re:bias$ : layer1.bn.bias head.bias
re:^layer\d+\.conv : layer1.conv1.weight layer10.conv1.weight
re:^(head|0)$ : : 0.weight head.weight head.bias
"""
"""A pattern, the names that it fits, and behind a second colon those that it covers where these are others."""


def test_what_a_pattern_fits_and_what_it_covers() -> None:
    for line in PATTERNS.strip().splitlines():
        text, _, rest = line.partition(" :")
        fits, differ, covers = rest.partition(" :")
        found = Pattern(text)
        assert [name for name in NAMES.split() if found.fits(name)] == fits.split(), line
        assert [name for name in NAMES.split() if found.covers(name)] == (covers if differ else fits).split(), line
    assert all(map(Pattern("*").fits, NAMES.split()))


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
