"""The tables of options in the help of the commands, and the pages of the manual that are written from the source."""

from __future__ import annotations

import re

import pytest
import yaml
from omegaconf import OmegaConf

from lightkit.cli.arguments import COMMANDS, CommandOption, Parser, help_of, options_of
from lightkit.cli.reference import GROUPS, PAGES, first_keys
from lightkit.config import compose
from lightkit.config.describe import describe_group
from lightkit.config.loader import make_loader
from lightkit.config.project import shipped_conf, shipped_docs


@pytest.mark.parametrize(
    ("command", "name", "option"),
    [
        ("runs", "--where", CommandOption(("--where",), "CONDITION", repeated=True)),
        ("gpus", "--id", CommandOption(("-i", "--id"), "GPUS", repeated=False)),
        ("ps", "--watch", CommandOption(("--watch",), "[SECONDS]", repeated=False)),
        ("train", "--config-dir", CommandOption(("-cd", "--config-dir"), "FOLDER", repeated=False)),
        ("train", "--multirun", CommandOption(("-m", "--multirun"), "", repeated=False)),
        ("ckpt merge", "--to", CommandOption(("--to",), "weights|safetensors|model", repeated=False)),
    ],
)
def test_an_option_is_what_the_help_says(command: str, name: str, option: CommandOption) -> None:
    assert options_of(command)[name] == option


def test_an_action_has_its_own_options_and_words() -> None:
    assert set(options_of("ckpt prune")) == {"--keep-last", "--keep-best", "--keep-every", "--mode", "--dry-run"}
    assert options_of("ckpt convert")["--to"].words[-2:] == ["torchensemble", "lightkit"]
    assert options_of("eval")["--checkpoint"].words == ["best", "last"]
    assert Parser("eval").parse_args(["--checkpoint", "file.pt"]).checkpoint == "file.pt"


def test_every_option_of_a_usage_is_in_the_table() -> None:
    usages = {command: help_of(command).partition("\n\n")[0] for command in COMMANDS}
    named = {command: set(re.findall(r"--[a-z][a-z-]*", usage)) for command, usage in usages.items()}
    assert not {command: names for command in COMMANDS if (names := named[command] - set(options_of(command)))}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_source_says(name: str) -> None:
    there = (shipped_docs() / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert there == PAGES[name](), "run `make conf`"


def test_the_page_of_options_has_every_group_and_key_and_whole_tables() -> None:
    text, loader = PAGES["options"](), make_loader(project=shipped_conf().parent)
    assert {*GROUPS} == {group for group in loader.groups() if loader.options(group)} - {"experiment", "hydra"}
    keys = [row.key for group in ("", *GROUPS) for row in describe_group(group)]
    assert [key for key in keys if f"\n| `{key}` |" not in text] == []
    rows = re.findall(r"^\|.*\|$", text, re.M)
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {5, 6}


def test_help_begins_with_the_keys_that_most_runs_need_as_they_are() -> None:
    composed, text = compose([]), help_of("train")
    assert 20 <= len(first_keys()) <= 30
    for key, default, meaning in first_keys():
        value = OmegaConf.select(composed.cfg, key)
        chosen = composed.choices.get(key, value)
        assert yaml.safe_load(default) == (list(value) if OmegaConf.is_list(value) else chosen), key
        named = re.search(r": ([\w, ]+), …", meaning)
        options = named[1].split(", ") if named and key in composed.choices else []
        assert not {*options} - {*make_loader().options(key)}, key
    _, _, groups = text.partition("all keys by group")
    assert tuple(re.findall(r"^  (\w+)  ", groups.partition("\n\n")[0], re.M)) == GROUPS
    assert [line for line in text.splitlines() if len(line) > 100] == []
