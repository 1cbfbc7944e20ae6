from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config.describe import describe_group, first_comment, group_names, list_options
from lightkit.config.schema import Config


def test_every_key_of_every_group_has_a_meaning() -> None:
    for group in ("", *Config.__dataclass_fields__):
        for row in describe_group(group):
            assert row.meaning, row.key
            assert row.type, row.key


def test_rows_tell_type_range_and_default() -> None:
    rows = {row.key: row for row in describe_group("trainer")}
    assert rows["trainer.epochs"].type == "a whole number or null; at least 1"
    assert rows["trainer.epochs"].default == "20"
    assert rows["trainer.test"].type == "one of best, last, none"
    assert rows["trainer.ema.decay"].default == "null"
    assert rows["trainer.task"].default == "lightkit.trainer.tasks.Supervised"
    assert "optim.rules[].lr_scale" in {row.key for row in describe_group("optim")}
    assert [row.key for row in describe_group("trainer.ema")] == ["trainer.ema.decay"]
    assert [row.key for row in describe_group("")] == ["name", "seed", "trust", "extra"]
    assert describe_group("experiment") == []


def test_options_with_comment_and_source(toy: Path) -> None:
    options = {option.name: option for option in list_options("optim")}
    assert options["sgd"].comment == "SGD."
    assert options["sgd"].source == "conf/optim/sgd.yaml"
    assert not any(name.startswith("_") for name in options)
    assert "optim" in group_names()
    assert list_options("hydra/launcher")[0].source == "part of Hydra"


def test_experiments_are_options(toy: Path) -> None:
    assert "mine" not in {option.name for option in list_options("experiment")}
    (toy / "experiments/mine.yaml").write_text("# @package _global_\n# My own.\nseed: 1\n")
    assert {option.name: option.comment for option in list_options("experiment")}["mine"] == "My own."


def test_an_unknown_group(toy: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)there is no such group.*nearest: optim"):
        list_options("optm")


def test_files_without_comment(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1\n# no head\n")
    assert first_comment(tmp_path / "a.yaml") == ""
