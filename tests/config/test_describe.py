"""How a key and what is said about it stand in a file of `conf/`; that the files are up to date is in test_conf."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from lightkit.cli.config import describe
from lightkit.common.errors import UserError
from lightkit.config import schema
from lightkit.config.describe import (
    Argument,
    describe_arguments,
    describe_group,
    describe_key,
    list_options,
    option_arguments,
)
from lightkit.config.fields import field_docs
from lightkit.config.loader import make_loader
from lightkit.config.pages import PAGES, commented, page
from lightkit.config.schema import Config
from tests.config.conftest import Write


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
    assert {row.key: row for row in describe_group("optim")}["optim.rules[].match"].type == "text or a list (text each)"
    assert "finetune.rules" not in rows, "an earlier name"
    assert rows["finetune.peft"].default == "null"
    assert "optim.rules[].warmup_steps" in {row.key for row in describe_group("optim")}


def test_every_field_of_the_schema_has_a_docstring() -> None:
    for module in (schema.base, schema.finetune, schema.learning, schema.device, schema.running, schema.sweeping):
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
    assert list_options("hydra/launcher")[0].source == "part of Hydra"


def test_experiments_are_options(toy: Path) -> None:
    assert "mine" not in {option.name for option in list_options("experiment")}
    (toy / "experiments/mine.yaml").write_text("# @package _global_\n# My own.\nseed: 1\n")
    assert {option.name: option.comment for option in list_options("experiment")}["mine"] == "My own."


def test_an_unknown_group(toy: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)there is no such group.*nearest: optim"):
        list_options("optm")
    with pytest.raises(UserError, match="lightkit config optim=sgd"):
        list_options("sgd")


def arguments(group: str, option: str) -> dict[str, Argument]:
    return {item.key: item for item in option_arguments(make_loader(), group, option)}


def test_values_of_the_file_and_what_it_is_based_on(write: Write) -> None:
    write("conf/model/base2.yaml", "_target_: toy.Net\nhidden: [4, 4]\nact: relu\n")
    write("conf/model/wider.yaml", "# Wider.\ndefaults:\n  - base2\nhidden: [64]\n")
    found = arguments("model", "wider")
    assert list(found) == ["model.hidden", "model.act", "model.body"]
    assert found["model.hidden"].value == "[64]"
    assert found["model.act"].type == "one of relu, gelu"
    assert not found["model.body"].written
    assert found["model.body"].value == "null"
    assert not {"model.num_classes", "model._target_"} & set(arguments("model", "net"))
    assert not {"optim.params", "optim.rules"} & set(arguments("optim", "sgd"))
    assert "optimizer" not in str(arguments("scheduler", "flat"))
    assert list(arguments("data", "toy")) == ["data.dataset.rows", "data.dataset.path"]
    write("conf/model/gone.yaml", "_target_: toy.Gone\nwidth: 1\n")
    assert (list(arguments("model", "gone")), arguments("model", "any")) == (["model.width"], {})


def test_meanings_come_from_docstrings(write: Write) -> None:
    text = '    """A net.\n\n    Args:\n        wide: How wide,\n            in all.\n        deep: Layers.\n    """\n'
    write("toy2.py", f"class N:\n{text}\n    def __init__(self, wide, deep=1):\n        pass\n")
    write("conf/model/doc.yaml", "# N.\n_target_: toy2.N\nwide: 3\n")
    found = arguments("model", "doc")
    assert found["model.wide"].meaning == "How wide, in all."
    assert found["model.deep"].meaning == "Layers."
    assert arguments("optim", "sgd")["optim.lr"].meaning.startswith("learning rate")


def test_a_group_lists_the_arguments_of_each_option(toy: Path) -> None:
    text = describe("optim").text()
    assert "arguments of optim, by choice:" in text
    assert "    optim.lr=0.1        learning rate\n" in text
    assert "also: " in text
    assert "nesterov=false" in text


def test_one_key_is_explained(toy: Path) -> None:
    text = describe("optim.lr").text()
    assert text.startswith("  optim.lr (a number; above 0)\n      learning rate\n")
    assert re.search(r"  optim=adam +(0\.001|1\.0e-3)\n", text)
    assert re.search(r"  optim=lbfgs +1\.0 +Learning rate; 1 is the rate of the method\n", text)
    assert re.search(
        r"optim=sgd +false +enables Nesterov .*; the default of what is built$", describe("optim.nesterov").text()
    )
    assert "subclasses of" in describe("trainer.callbacks").text()
    assert "Seed of all random decisions" in describe("seed").text()


def test_a_key_of_a_group_with_defaults_is_explained(toy: Path) -> None:
    text = describe("finetune.train").text()
    assert text.startswith("  finetune.train (a list (text each); [] by default)\n      Patterns of exceptions")
    assert '  finetune=bitfit   ["@bias", "@head"]\n' in text
    assert describe("finetune.lora.rank").text().startswith("  finetune.lora.rank (a whole number; at least 1) = 8\n")
    assert "finetune=lora\n    finetune.freeze=" in describe("finetune").text()


def test_keys_below_a_node_with_free_names(toy: Path) -> None:
    assert [row.key for row in describe_key("metrics.val.f1")] == ["metrics.val"]
    assert [row.key for row in describe_key("data.mixup.alpha")] == ["data.mixup.alpha"]
    assert describe_key("trainer.epochz") == []


def test_an_unknown_key_and_one_without_its_group(toy: Path) -> None:
    for key in ("optim.lrr", "model.hiden", "trainer.epoch"):
        with pytest.raises(UserError, match=rf"(?s)there is no such key.*nearest: {key[:7]}"):
            describe(key).text()
    with pytest.raises(UserError, match=r"(?s)there is no such group.*did you mean model\.dropout or finetune"):
        describe("dropout").text()


def test_a_long_comment_goes_on_below_itself() -> None:
    text = commented("lr: 0.1", "of " * 40, column=10)
    first, second = text.splitlines()
    assert first.startswith("lr: 0.1   # of of")
    assert second.startswith("          # of")
    assert len(first) <= 120
    assert commented("_target_: a.B", "", column=10) == "_target_: a.B"


def test_a_page_says_something_about_every_key() -> None:
    for name in PAGES:
        lines = page(name).splitlines()
        assert all("#" in line or line.strip().startswith("_target_:") for line in lines), name
        assert yaml.safe_load(page(name)), name
