"""A part of a run in epochs or optimizer steps, as `trainer.stop_at` has it: `3` or `"300 steps"`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

EXPECTED = "a number of epochs such as 3, or of optimizer steps such as '300 steps'"
_LENGTH = re.compile(r"([1-9]\d*)(?: (epoch|step)s?)?")


@dataclass(frozen=True)
class Length:
    """How far a run goes.

    Attributes:
        count: How many, at least 1.
        unit: Of what.
    """

    count: int
    unit: Literal["epoch", "step"] = "epoch"

    def __str__(self) -> str:
        return str(self.count) if self.unit == "epoch" else f"{self.count} step{'' if self.count == 1 else 's'}"


def read_length(value: Any) -> Length:
    """Read a length: a number of epochs, or a text that says of what it is a number.

    Raises:
        ValueError: It is neither.
    """
    found = None if isinstance(value, bool) else _LENGTH.fullmatch(str(value).strip())
    if found is None:
        raise ValueError("not a length")
    return Length(int(found[1]), "step" if found[2] == "step" else "epoch")
