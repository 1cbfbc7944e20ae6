from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.common.text import (
    forget,
    in_one_line,
    json_text,
    look_alike,
    plain_letters,
    remember,
    slug,
    visible,
    without_secrets,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Größe 数 😀\ttab\nline", "plain Größe 数 😀\ttab\nline"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("over\rwritten\x08", r"over\x0dwritten\x08"),
        ("\x7f\x9b31m", r"\u007f\u009b31m"),
        ("a\u202egpj.exe\u2066", r"a\u202egpj.exe\u2066"),
        ("not utf-8: \udcff", r"not utf-8: \udcff"),
    ],
)
def test_what_a_terminal_would_act_on_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_a_cell_stays_in_its_line() -> None:
    assert in_one_line("a\nfailed\tb\x1b") == r"a\nfailed\tb\x1b"


def test_json_stays_json() -> None:
    values = ["\x1b[31m\x7f\n\udcff"]
    for is_plain in (False, True):
        assert json.loads(visible(json.dumps(values, ensure_ascii=is_plain))) == values


@pytest.mark.parametrize(
    ("text", "plain", "said"),
    [
        ("\u043eptim.lr", "optim.lr", "'\u043e' is CYRILLIC SMALL LETTER O, not 'o'"),
        ("\u22120.1", "-0.1", "'\u2212' is MINUS SIGN, not '-'"),
        ("\uff4cr", "lr", "'\uff4c' is FULLWIDTH LATIN SMALL LETTER L, not 'l'"),
        ("\u201cwine\u201d", '"wine"', "'\u201c' is LEFT DOUBLE QUOTATION MARK, not '\"'"),
        ("\u03bfne", "one", "'\u03bf' is GREEK SMALL LETTER OMICRON, not 'o'"),
        ("plain-text", "plain-text", None),
        ("\u00dcberlauf", "\u00dcberlauf", None),
        ("\u043e\u043f\u044b\u0442", "o\u043f\u044b\u0442", None),
    ],
)
def test_letters_that_only_look_like_ascii_are_named(text: str, plain: str, said: str | None) -> None:
    assert plain_letters(text) == plain
    assert look_alike(text) == said


def test_slug() -> None:
    pairs = {
        "a b/c": "a-b-c",
        "../..": "run",
        "": "run",
        "optim.lr=0.1,seed=2": "optim.lr=0.1,seed=2",
        "Größe": "Größe",
    }
    assert {text: slug(text) for text in pairs} == pairs
    assert (slug("x" * 500), slug("実" * 500)) == ("x" * 120, "実" * 66), "198 bytes"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    forget()
    yield
    forget()


SHOWN = ("no such file: /home/ada/{}/x.csv", "https://user:{}@host", "'{}'", "received: 'x_{}_y', and Bearer{}2")


@pytest.mark.parametrize("value", ["hunter2-0b5f3a", "with 'quotes' and \\", "é$(x)"])
def test_a_value_is_shown_as_it_stands_in_the_configuration(value: str) -> None:
    remember("TOKEN", value)
    for shown in SHOWN:
        for form in (value, repr(value)[1:-1]):
            assert without_secrets(shown.replace("{}", form)) == shown.replace("{}", "${oc.env:TOKEN}")
        assert value not in visible(shown.replace("{}", value))
    assert value not in str(UserError("wrong", key="data.path", received=f"pre{value}post", fix=f"rm {value}"))
    forget()
    assert without_secrets(value) == value


def test_numbers_short_words_folders_and_parts_of_words_are_left(tmp_path: Path) -> None:
    for value in ("3", "0.001", "20260131", "cuda", "", str(tmp_path)):
        remember("A", value)
        assert without_secrets(f"a {value} b") == f"a {value} b"
    remember("A", "rates")
    assert without_secrets("celebrates rates: x_rates_y") == "celebrates ${oc.env:A}: x_${oc.env:A}_y"


def test_the_folders_of_a_path_that_is_not_there_are_a_part_of_it(tmp_path: Path) -> None:
    remember("A", f"{tmp_path}/hunter2-0b5f3a/x.csv")
    assert without_secrets(f"there is no folder {tmp_path}/hunter2-0b5f3a") == "there is no folder ${oc.env:A}"


def test_json_has_null_for_what_is_no_number() -> None:
    content = {"loss": float("nan"), "rows": [float("inf"), 1], "folder": Path("a"), "name": "ü"}
    assert json_text(content, one_line=True) == '{"loss": null, "rows": [null, 1], "folder": "a", "name": "ü"}'
    assert json.loads(json_text(content)) == {"loss": None, "rows": [None, 1], "folder": "a", "name": "ü"}
