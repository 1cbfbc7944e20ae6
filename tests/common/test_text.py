from __future__ import annotations

import json

import pytest

from lightkit.common.text import in_one_line, look_alike, plain_letters, slug, visible


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b/c", "a-b-c"),
        ("../..", "run"),
        ("", "run"),
        ("optim.lr=0.1,seed=2", "optim.lr=0.1,seed=2"),
        ("Größe", "Größe"),
        ("x" * 500, "x" * 120),
        ("実" * 500, "実" * 66),  # 198 bytes
    ],
)
def test_slug(text: str, expected: str) -> None:
    assert slug(text) == expected
