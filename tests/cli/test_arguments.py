"""What the parser says where argparse would print its usage and leave."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from lightkit.cli.arguments import COMMANDS, Option, Parser, check_checkpoint, help_of, options_of, whole_number
from lightkit.common.errors import UserError


@pytest.fixture
def parser() -> Parser:
    parser = Parser("resume", "run", "overrides*")
    parser.add_argument("--limit", type=int)
    parser.add_argument("-cd", "--config_dir")
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    return parser


def test_options_and_positional_arguments_may_be_mixed(parser: Parser) -> None:
    found = parser.read(["last", "--limit", "3", "seed=1", "seed=2"])
    assert (found.run, found.limit, found.overrides) == ("last", 3, ["seed=1", "seed=2"])


def test_a_missing_argument_is_named_with_the_usage(parser: Parser) -> None:
    with pytest.raises(UserError, match=r"RUN is missing\n.*expected: +lightkit resume RUN \[OVERRIDES\]"):
        parser.read([])


def test_an_unknown_option_names_those_that_are_advertised(parser: Parser) -> None:
    with pytest.raises(UserError, match="no such option") as caught:
        parser.read(["last", "--limt", "3"])
    assert caught.value.choices == ("--detach", "--all-lost", "--limit")
    assert caught.value.fix is None


def test_an_override_with_dashes_is_recognised(parser: Parser) -> None:
    with pytest.raises(UserError, match="fix: +seed=1, without dashes"):
        parser.read(["last", "--seed=1"])


def test_an_option_of_another_tool_is_told_as_a_key(parser: Parser) -> None:
    with pytest.raises(UserError, match=r"fix: +keys have no dashes: optim\.lr=0\.1"):
        parser.read(["last", "--lr", "0.1"])
    with pytest.raises(UserError, match=r"keys have no dashes: data\.batch_size=VALUE"):
        parser.read(["last", "--batch-size"])


def test_a_value_of_another_type(parser: Parser) -> None:
    with pytest.raises(UserError, match=r"argument --limit: invalid int value: 'x'[\s\S]*lightkit resume --help"):
        parser.read(["last", "--limit", "x"])


def test_a_word_too_many_is_not_called_an_option() -> None:
    parser = Parser("attach", "run")
    with pytest.raises(UserError, match=r"lightkit attach: one word too many\n.*received: 'other'"):
        parser.read(["last", "other"])


@pytest.mark.parametrize(("args", "sort"), [(["--sort", "-loss"], "-loss"), (["--sort", "loss"], "loss")])
def test_a_value_may_begin_with_a_dash(args: list[str], sort: str) -> None:
    parser = Parser("runs", dashed=("--sort",))
    assert parser.read(args).sort == sort


@pytest.mark.parametrize(
    ("text", "what"),
    [("0", "out of range"), ("7", "out of range"), ("-1", "out of range")]
    + [(text, "not a whole number") for text in ("1.5", "", "x")],
)
def test_a_whole_number_in_its_range(text: str, what: str) -> None:
    assert whole_number("--count", "1", least=1, most=6) == 1
    with pytest.raises(UserError, match=rf"--count: {what}\n +expected: a whole number from 1 to 6"):
        whole_number("--count", text, least=1, most=6)


def test_a_checkpoint_is_one_of_two_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "file.pt").touch()
    for which in ("best", "last", str(tmp_path / "file.pt")):
        check_checkpoint(which)
    with pytest.raises(UserError, match="no such checkpoint"):
        check_checkpoint("newest")


@pytest.mark.parametrize(
    ("command", "name", "option"),
    [
        ("runs", "--where", Option(("--where",), "CONDITION", repeated=True)),
        ("gpus", "--id", Option(("-i", "--id"), "GPUS", repeated=False)),
        ("ps", "--watch", Option(("--watch",), "[SECONDS]", repeated=False)),
        ("find", "--high", Option(("--high",), "LR", repeated=False)),
        ("train", "--config-dir", Option(("-cd", "--config-dir"), "FOLDER", repeated=False)),
        ("train", "--multirun", Option(("-m", "--multirun"), "", repeated=False)),
        ("ckpt convert", "--pickle-protocol", Option(("--pickle-protocol",), "N", repeated=False)),
        ("ckpt merge", "--to", Option(("--to",), "weights|safetensors|model", repeated=False)),
    ],
)
def test_an_option_is_what_the_help_says(command: str, name: str, option: Option) -> None:
    assert options_of(command)[name] == option


def test_an_action_has_its_own_options_and_words() -> None:
    assert set(options_of("ckpt prune")) == {"--keep-last", "--keep-best", "--keep-every", "--mode", "--dry-run"}
    assert options_of("ckpt convert")["--to"].words[-2:] == ["torchensemble", "lightkit"]
    assert options_of("eval")["--checkpoint"].words == ["best", "last"]
    assert Parser("eval").parse_args(["--checkpoint", "file.pt"]).checkpoint == "file.pt"
    with pytest.raises(UserError, match="invalid choice: 'x'"):
        Parser("predict").read(["--split", "x"])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_usage_is_in_the_table(command: str) -> None:
    named = set(re.findall(r"--[a-z][a-z-]*", help_of(command).partition("\n\n")[0]))
    assert named <= set(options_of(command))
