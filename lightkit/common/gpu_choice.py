"""What `device.gpus` may hold, read the same way by the checker and by what chooses them."""

from __future__ import annotations

import re
from typing import Any

EXPECTED = "a list of GPU numbers such as [0, 2], or auto:N for the N with the most free memory"
_AUTO = re.compile(r"auto(?::([1-9]\d*))?")


def read_gpus(value: Any) -> tuple[int, ...] | int:
    """The numbers of the GPUs that are meant, or how many are.

    Raises:
        ValueError: It is neither; the text says what is wrong with it.
    """
    if isinstance(value, str):
        found = _AUTO.fullmatch(value)
        if found is None:
            raise ValueError("not a choice of GPUs")
        return int(found[1] or 1)
    numbers = tuple(value)
    if not numbers:
        raise ValueError("this chooses no GPU")
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("not the numbers of GPUs")
    if len(set(numbers)) < len(numbers):
        raise ValueError("a GPU is named twice")
    return numbers
