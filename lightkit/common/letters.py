"""Characters that look like ASCII and are not: letters of other scripts, typographic dashes and quotes."""

from __future__ import annotations

import unicodedata

_LIKE = {
    "acdeijopqsuwxyhABCEHIJKMOPSTXY": "асԁеіјорԛѕυԝхуһАВСЕНІЈКМОРЅТХУ",  # mostly Cyrillic
    "aikonptuvxABEZHIKMNOPTYX": "αικοηρτυνχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",  # Greek
    "-----": "−–—‐‑",
    "\"\"''": "“”‘’",
}
_PLAIN = str.maketrans({odd: plain for plains, odds in _LIKE.items() for plain, odd in zip(plains, odds)})


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
