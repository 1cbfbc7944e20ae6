"""What kind of value stands where in what a run writes, so that whoever reads it finds nothing else there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lightkit.common.reading import UnreadableError, parse_object

_LARGEST = 2**63


class Kind(NamedTuple):
    """A kind of values."""

    word: str
    """What such a value is, in words."""
    fits: Callable[[Any], bool]
    """Tells whether a value is one."""


Shape = Mapping[str, Any]
"""What is known of the keys of an object: for each a kind, or the shape of the object it leads to."""


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number that a run can have counted to."""
    return type(value) is int and -_LARGEST < value < _LARGEST


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    return is_whole(value) or (type(value) is float and abs(value) < float("inf"))


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number", is_whole)
NUMBER = Kind("a number", is_number)
TEXTS = Kind("a list of texts", lambda value: isinstance(value, list) and all(map(TEXT.fits, value)))
ENDINGS = ("finished", "paused", "pruned", "interrupted", "failed")
"""How a run can have ended that wrote it down."""
_OF_JOBS = (*ENDINGS, "stopped")
STATUS = Kind(f"one of {', '.join(ENDINGS)}", lambda value: isinstance(value, str) and value in ENDINGS)
JOB_STATUS = Kind(f"one of {', '.join(_OF_JOBS)}", lambda value: isinstance(value, str) and value in _OF_JOBS)
"""How a job of a sweep can have ended: also as somebody stopped it alone."""
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
NAMED_TEXTS = Kind("an object of texts", lambda value: isinstance(value, dict) and all(map(TEXT.fits, value.values())))
OBJECTS = Kind("a list of objects", lambda value: isinstance(value, list) and all(map(OBJECT.fits, value)))


def fitting(content: Mapping[str, Any], shape: Shape, damage: list[str], above: str = "") -> dict[str, Any]:
    """Keep of an object what has the kind that is written there, and what nothing is known of.

    Args:
        content: The object; numbers that are not finite count as null.
        shape: What is known of its keys; each may also be null.
        damage: Gets a few words for each value of another kind.
        above: The keys that lead to it.
    """
    kept = dict[str, Any]()
    for key, value in content.items():
        kind = shape.get(key, shape.get("*"))
        value = None if isinstance(value, float) and not math.isfinite(value) else value
        if kind is None or value is None or (isinstance(kind, Kind) and kind.fits(value)):
            kept[key] = value
        elif not isinstance(kind, Kind) and isinstance(value, dict):
            kept[key] = fitting(value, kind, damage, f"{above}{key}.")
        else:
            damage.append(f"`{above}{key}` is not {kind.word if isinstance(kind, Kind) else OBJECT.word}")
    return kept


def read_row(line: bytes | str) -> dict[str, Any]:
    """Return a row of `metrics.jsonl`: `step`, and the numbers in it; what is none is left out.

    Args:
        line: The line.

    Raises:
        UnreadableError: It is no row.
    """
    found = parse_object(line)
    row = {name: value for name, value in found.items() if value is None or is_number(value)}
    for name in ("step", "epoch"):
        if name in found and not is_whole(row.get(name)):
            raise UnreadableError(f"`{name}` is not {WHOLE.word}")
    if "step" not in row:
        raise UnreadableError("`step` is missing")
    return row
