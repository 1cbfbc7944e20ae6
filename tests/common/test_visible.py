from __future__ import annotations

import json

import pytest

from lightkit.common.visible import in_one_line, visible


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
