"""Text from files that somebody else may have written, made safe to show on a terminal."""

from __future__ import annotations

import re

_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line break, those that turn the direction of writing, and halves of pairs."""


def visible(text: str) -> str:
    r"""The same text, with what a terminal would act on written out: `\x1b` for an escape, `\u202e` for a turn."""
    return _ACTING.sub(_written_out, text)


def in_one_line(text: str) -> str:
    """`visible`, with tabs and line breaks written out too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _written_out(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x20 else f"\\u{number:04x}"  # JSON knows the longer form only
