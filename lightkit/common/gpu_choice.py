"""What `device.gpus` may hold, read the same way by the checker and by what chooses them."""

from __future__ import annotations

import re
from typing import Any

EXPECTED = "a list of GPU numbers such as [0, 2], or of UUIDs, or auto:N for the N with the most free memory"
_UUID = re.compile(r"(GPU|MIG)-[\w/.-]+")
_AUTO = re.compile(r"auto(?::([1-9]\d*))?")


def read_gpus(value: Any) -> tuple[int | str, ...] | int:
    """Read the numbers or UUIDs of the GPUs that are meant, or how many are.

    Raises:
        ValueError: It is neither; the text says what is wrong with it.
    """
    if isinstance(value, str) and _UUID.fullmatch(value):
        return (value,)
    if isinstance(value, str):
        found = _AUTO.fullmatch(value)
        if found is None:
            raise ValueError("not a choice of GPUs")
        return int(found[1] or 1)
    numbers = tuple(value)
    if not numbers:
        raise ValueError("this chooses no GPU")
    # A UUID may be that of a GPU or of a MIG instance, or the beginning of one.
    named = (_UUID.fullmatch(item) if isinstance(item, str) else type(item) is int and item >= 0 for item in numbers)
    if not all(named):
        raise ValueError("not the numbers or UUIDs of GPUs")
    if len(set(numbers)) < len(numbers):
        raise ValueError("a GPU is named twice")
    return numbers
