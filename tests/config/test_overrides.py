"""What is said of an override that was meant otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightkit.config import compose

HINTS = [
    ("optim.learning_rate=0.1", "fix:      did you mean optim.lr?"),
    ("trainer.max_epochs=3", "fix:      did you mean trainer.epochs?"),
    ("data.bs=3", "fix:      did you mean data.batch_size?"),
    ("\u043eptim.lr=0.1", "'\u043e' is CYRILLIC SMALL LETTER O, not 'o', which it looks like"),
    ("optim.lr=\u22120.1", "fix:      optim.lr=-0.1"),
    ("optim.lr='\u22120.1'", "write -0.1"),
    ("+key=1", "a value of your own goes below `extra`: extra.key=VALUE"),
    ("mlp.hidden=[3]", "fix:      model=mlp model.hidden=[3]"),
    ("--optim.lr=0.1", "fix:      optim.lr=0.1, without dashes"),
    ("device=gpu", "fix:      device=cuda"),
    ("device=cuda:1", "fix:      device=cuda device.name=cuda:1"),
    ("loss.weight=[1,a]", "expected: a list of numbers or a `_target_` or null"),
    ("optim.lr=[1]", "expected: a number"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("override", "hint"), HINTS)
def test_the_right_hint(override: str, hint: str, cli: Callable[..., Any]) -> None:
    done = cli("train", "data=wine", override)
    assert done.code == 2
    assert hint in done.err


def test_overrides_without_a_command(cli: Callable[..., Any]) -> None:
    done = cli("data=wine", "seed=1")
    assert (done.code, "fix:      lightkit train data=wine seed=1" in done.err) == (2, True)


def test_letters_beyond_ascii_need_no_quotes() -> None:
    assert compose(["name=\u00dcberlauf"]).cfg.name == "\u00dcberlauf"
    assert compose(["name=\u043e\u043f\u044b\u0442 2"]).cfg.name == "\u043e\u043f\u044b\u0442 2"
