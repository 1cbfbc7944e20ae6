from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.config import schema
from lightkit.config.describe import (
    describe_arguments,
    describe_group,
    first_comment,
    group_names,
    list_options,
)
from lightkit.config.fields import field_docs
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
    assert [row.key for row in describe_group("")] == ["name", "seed", "profile", "on_end", "trust", "extra"]
    assert describe_group("experiment") == []


def test_limits_of_the_items_of_a_list() -> None:
    rows = {row.key: row for row in describe_group("finetune")}
    assert rows["finetune.slices"].type == "a list (a number each); each above 0"
    assert rows["finetune.lora.ranks"].type == "a mapping of names to values; each at least 1"
    assert rows["finetune.rules[].match"].type == "text or a list (text each)"
    assert rows["finetune.peft"].default == "null"
    assert "optim.rules[].warmup_steps" in {row.key for row in describe_group("optim")}


def test_every_field_of_the_schema_has_a_docstring() -> None:
    for module in (schema.base, schema.finetune, schema.learning, schema.device, schema.running):
        types = [
            item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__
        ]
        assert all(field_docs(kind).keys() >= {field.name for field in dataclasses.fields(kind)} for kind in types)


def test_what_an_option_changes_of_a_group_with_defaults(toy: Path) -> None:
    found = {name: {item.key: item for item in items} for name, items in describe_arguments("finetune").items()}
    assert found["head"]["finetune.freeze"].value == '["*"]'
    assert found["head"]["finetune.freeze"].type == "a list (text each); [] by default"
    assert found["gradual"]["finetune.gradual.share"].meaning.startswith("Or: everything is unfrozen")
    assert "finetune.peft.target_modules" in found["peft"]
    assert "none" not in found
    assert list(describe_arguments("checkpoint")) == ["none"]
    assert "data.split.by" not in str(describe_arguments("data"))


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


def test_an_option_where_a_group_is_wanted(toy: Path) -> None:
    with pytest.raises(UserError, match="lightkit config optim=sgd"):
        list_options("sgd")


def test_files_without_comment(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1\n# no head\n")
    assert first_comment(tmp_path / "a.yaml") == ""
