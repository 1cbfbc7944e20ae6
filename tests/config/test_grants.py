"""Keys that grant trust are marked in the schema, and their mark is all that the rest goes by."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Optional

import pytest

from lightkit.common.errors import UserError
from lightkit.config import grants
from lightkit.config.describe import describe_key
from lightkit.config.fields import valid_keys
from lightkit.config.grants import changed_around, granting_keys, withdraw
from lightkit.config.origins import dotted
from lightkit.config.schema import GRANTS

SOUNDS_LIKE = re.compile(r"runs the code|only for files whose origin|that a `_target_` may name|a command to run", re.I)


def test_every_key_that_sounds_like_trust_is_marked() -> None:
    marked = {dotted(key) for key in granting_keys()}
    assert marked == {"trust", "finetune.weights.trust", "on_end", "resume.trust"}
    for key in valid_keys():
        rows = [row for row in describe_key(key) if row.key == key]
        sounds = re.search(r"trust|unsafe|pickled", key) or any(SOUNDS_LIKE.search(row.meaning) for row in rows)
        assert bool(sounds) == (key in marked), key


@dataclasses.dataclass
class Inner:
    opens: bool = dataclasses.field(default=False, metadata=GRANTS)


@dataclasses.dataclass
class Outer:
    one: Optional[Inner] = None
    many: list[Inner] = dataclasses.field(default_factory=list)
    named: dict[str, Inner] = dataclasses.field(default_factory=dict)


@pytest.fixture
def schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another schema, with marks in all places where a later key may have one."""
    monkeypatch.setattr(grants, "Config", Outer)


def test_a_mark_is_found_wherever_it_stands(schema: None) -> None:
    assert granting_keys() == (("one", "opens"), ("many", "*", "opens"), ("named", "*", "opens"))
    tree: Any = {"one": {"opens": True}, "many": [{"opens": True}, {}], "named": {"a": {"opens": "${b}"}, "b": None}}
    withdraw(tree)
    assert tree == {
        "one": {"opens": False},
        "many": [{"opens": False}, {}],
        "named": {"a": {"opens": False}, "b": None},
    }
    for way in ({"one": "${x}"}, {"many": "${x}"}, {"many": ["${x}"]}, {"named": {"a": "${x}"}}):
        with pytest.raises(UserError, match="refers to another place"):
            withdraw(way)
    withdraw({"one": 3, "many": {"a": 3}, "named": [None]})


def test_what_is_changed_around_a_key(schema: None) -> None:
    assert changed_around(["one.other=3", "+many[0].x=1"]) == [("one", "opens"), ("many", "*", "opens")]
    assert changed_around(["~named"]) == [("named", "*", "opens")]
    assert changed_around(["else=3"]) == []
