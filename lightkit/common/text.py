"""Text that somebody else may have written: made safe to show, without secrets and look-alikes of ASCII; and JSON.

Values that came from the environment may be secrets: no message shows them.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""Cells that mean that there is no value, in lower case."""
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


def format_bytes(count: int) -> str:
    """Write a number of bytes for people: `8.2 KiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


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


def is_missing(cell: str) -> bool:
    """Tell whether a cell has no value, or one that nothing can be computed with, such as `inf`."""
    if cell.lower() in MISSING:
        return True
    return cell.lower().lstrip("+-")[:3] in ("inf", "nan") and is_number(cell) and not math.isfinite(float(cell))


def json_text(content: object, *, one_line: bool = False) -> str:
    """Write plain values as JSON, which has null for what is no finite number.

    Args:
        content: Lists, dictionaries, numbers and texts; of anything else its text is written.
        one_line: Write a line, for one value after the other; else indented.
    """
    return json.dumps(plain(content), indent=None if one_line else 2, ensure_ascii=False, allow_nan=False)


def plain(content: Any) -> Any:
    """Reduce nested content to what JSON knows."""
    if content is None or isinstance(content, (bool, int, str)):
        return content
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple, set, frozenset)):
        return [plain(value) for value in content]
    return str(content)


def counted(number: int, noun: str) -> str:
    """Write how many there are of something: `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def slug(text: str) -> str:
    """Make `text` part of a file name: letters, digits, `.`, `=`, `,`, `+`, `-`, `_`; at most 120 characters.

    Of long letters there are fewer: file systems count bytes.
    """
    name = re.sub(r"[^\w.=,+-]+", "-", text).strip("-.")[:120]
    return name.encode()[:_MOST_BYTES].decode(errors="ignore") or "run"


_SHORTEST = 5
"""Characters; what is shorter is part of too many words."""
_PLAIN_WORD = 8
"""Characters; a folder or a word that is shorter may be, or be part of, a word of a message."""
_NAMES: dict[str, str] = {}  # value → variable, as global as the environment


def remember(variable: str, value: str) -> None:
    """Let no message show a value, but for numbers, short words and folders that exist.

    Args:
        variable: The environment variable that it came from.
        value: Its value.
    """
    text = value.strip()
    if len(text) >= _SHORTEST and not re.fullmatch(r"[\d.]{1,8}", text) and not _is_folder(text):
        folders = [str(place) for place in Path(text).parents]  # a message may name the first that is missing
        for part in (text, *(place for place in folders if len(place) >= _PLAIN_WORD and not _is_folder(place))):
            quoted = shlex.quote(part).removeprefix("'").removesuffix("'")
            forms = (part, repr(part)[1:-1], json.dumps(part)[1:-1], quoted)
            _NAMES.update(dict.fromkeys(forms, variable))


def forget() -> None:
    """Begin anew, where a command does."""
    _NAMES.clear()


def without_secrets(text: str) -> str:
    """Write what came from the environment as it stands in the configuration: `${oc.env:TOKEN}`."""
    for value in sorted(_NAMES, key=len, reverse=True):
        if value in text:
            # A short word is something else inside of a longer one: `train` in `trainer`.
            is_word = value.isalpha() and len(value) < _PLAIN_WORD
            pattern = rf"(?<![^\W_]){value}(?![^\W_])" if is_word else re.escape(value)
            text = re.sub(pattern, f"${{oc.env:{_NAMES[value]}}}".replace("\\", r"\\"), text)
    return text


def _is_folder(text: str) -> bool:
    """Tell whether a value is a place on this machine, which the names of files are made of."""
    try:
        return Path(text).is_absolute() and Path(text).is_dir()
    except (OSError, ValueError):
        return False
