"""What is said of an override that was meant otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.common.errors import UserErrors
from lightkit.config import compose, compose_jobs

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


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("optim.lr=0,001", "optim.lr=0.001, with a point; for several runs add -m"),
        ("trainer.clip_norm=1,5", "trainer.clip_norm=1.5, with a point; for several runs add -m"),
        ("seed=0,1", "add -m, or for a list write seed=[…]"),
        ("optim.lr: 0,001", "fix:      optim.lr=0.001\n"),
        ("optim.lr: 0.001", "fix:      optim.lr=0.001\n"),
        ("trainer.epochs:", "fix:      trainer.epochs=VALUE\n"),
    ],
)
def test_a_comma_or_a_colon_out_of_place(override: str, fix: str) -> None:
    with pytest.raises(UserErrors) as raised:
        compose([override])
    assert fix in str(raised.value)


@pytest.mark.parametrize("composed", [compose_jobs, compose], ids=["sweep", "run"])
def test_a_range_of_fractions_counts_from_zero_in_ones(composed: Callable[[list[str]], object]) -> None:
    with pytest.raises(UserErrors) as raised:
        composed(["optim.lr=range(0.1)"])
    text = str(raised.value)
    assert "optim.lr: this range counts from 0 to 0.1 in steps of 1, which is one value" in text
    assert "optim.lr=range(0.1,0.5,0.1)" in text
    assert "fix:      the values themselves: optim.lr=0.001,0.01,0.1" in text
    assert len(raised.value.errors) == 1


def test_a_range_that_has_a_step_and_one_of_whole_numbers_stay() -> None:
    assert [job.cfg.optim.lr for job in compose_jobs(["optim.lr=range(0.1,0.35,0.1)"])] == pytest.approx(
        [0.1, 0.2, 0.3]
    )
    assert len(compose_jobs(["seed=range(1)"])) == 1


def test_a_decimal_comma_in_a_file_says_how_numbers_are_written(project: Path) -> None:
    (project / "conf" / "experiment").mkdir(parents=True, exist_ok=True)
    (project / "conf" / "experiment" / "comma.yaml").write_text(
        "# @package _global_\noptim:\n  lr: 0,001\ntrainer:\n  epochs: 1,5\nname: 0,5\n"
    )
    with pytest.raises(UserErrors) as raised:
        compose(["experiment=comma"])
    text = str(raised.value)
    assert "fix:      optim.lr=0.001, with a point" in text
    assert "fix:      trainer.epochs=1.5, with a point" not in text  # which is no whole number either
    assert len(raised.value.errors) == 2


def test_an_empty_mapping_removes_nothing_and_is_told_once(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        cfg = compose(["metrics.train={}", "extra={}", "data=wine"]).cfg
    assert list(cfg.metrics.train) == ["accuracy"]
    (line,) = [message for message in caplog.messages if "removes nothing" in message]
    assert line.startswith("metrics.train={} removes nothing")
    assert line.endswith(" ~metrics.train.accuracy")
    assert not compose(["~metrics.train.accuracy", "data=wine"]).cfg.metrics.train
