"""Text that somebody else may have written: made safe to show, and characters that only look like ASCII."""

from __future__ import annotations

import re
import unicodedata

from lightkit.common.secrets import without_secrets

_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line break, those that turn the direction of writing, and halves of pairs."""
_LIKE = {
    "acdeijopqsuwxyhABCEHIJKMOPSTXY": "асԁеіјорԛѕυԝхуһАВСЕНІЈКМОРЅТХУ",  # mostly Cyrillic
    "aikonptuvxABEZHIKMNOPTYX": "αικοηρτυνχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",  # Greek
    "-----": "−–—‐‑",
    "\"\"''": "“”‘’",
}
_MOST_BYTES = 200
"""Of a part of a file name."""
_PLAIN = str.maketrans({odd: plain for plains, odds in _LIKE.items() for plain, odd in zip(plains, odds)})


def visible(text: str) -> str:
    r"""Write out what a terminal would act on: `\x1b` for an escape, `\u202e` for a turn.

    What came from the environment is written as it stands in the configuration.
    """
    # From 0x20 on JSON knows the longer form only.
    shown = without_secrets(text)
    return _ACTING.sub(lambda at: f"\\x{ord(at[0]):02x}" if at[0] < " " else f"\\u{ord(at[0]):04x}", shown)


def in_one_line(text: str) -> str:
    """Write out what a terminal would act on, tabs and line breaks too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def plain_letters(text: str) -> str:
    """Put ASCII in the place of characters that only look like it; `lr` for `ｌｒ`, `-1` for `−1`."""
    return unicodedata.normalize("NFKC", text).translate(_PLAIN)


def look_alike(text: str) -> str | None:
    """Name the first character that only looks like ASCII, in a text that would be ASCII without such.

    A word of another script, which has letters of its own, is none.
    """
    plain = plain_letters(text)
    if text.isascii() or not plain.isascii():
        return None
    odd = next(sign for sign in text if not sign.isascii())
    return f"{odd!r} is {unicodedata.name(odd, 'no ASCII')}, not {plain_letters(odd)!r}"


def three_digits(number: float) -> str:
    """Write a number with three significant digits and no exponent: `0.314`, `87.1`, `12,700`."""
    return f"{float(f'{number:.3g}'):,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def is_number(text: str) -> bool:
    """Tell whether a text is a number as Python reads one, `nan` and `inf` too."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def counted(number: int, noun: str) -> str:
    """Write how many there are of something: `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def slug(text: str) -> str:
    """Make `text` part of a file name: letters, digits, `.`, `=`, `,`, `+`, `-`, `_`; at most 120 characters.

    Of long letters there are fewer: file systems count bytes.
    """
    name = re.sub(r"[^\w.=,+-]+", "-", text).strip("-.")[:120]
    return name.encode()[:_MOST_BYTES].decode(errors="ignore") or "run"
