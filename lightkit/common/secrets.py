"""Values that came from the environment, which may be secrets: no message shows them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

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
