"""A part of a run in epochs or optimizer steps, as `trainer.stop_at` has it: `3` or `"300 steps"`."""

from __future__ import annotations

import math
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


EXPECTED_TIME = "seconds above 0, or a text such as 90s, 30m, 2h, 1d, 1h30m or 1:30:00"
"""What a length of time looks like, in the words of an error."""
_UNITS = re.compile(r"(?:(?P<d>[\d.]+)d)?(?:(?P<h>[\d.]+)h)?(?:(?P<m>[\d.]+)m)?(?:(?P<s>[\d.]+)s?)?")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SLURM = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


def read_duration(value: float | str) -> float:
    """Return the seconds of a length of time.

    Args:
        value: As it was typed; a bare number counts seconds.

    Raises:
        ValueError: It is none.
    """
    seconds = _read(value) if isinstance(value, str) else float(value)
    if not 0 < seconds < math.inf:
        raise ValueError("not a length of time")
    return seconds


def read_slurm_time(value: int | str) -> float | None:
    """Return the seconds of a time limit as `sbatch --time` takes it; None for one without an end, or of another form.

    Args:
        value: Minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`.
    """
    found = _SLURM.fullmatch(str(value).strip())
    if found is None:
        return None
    parts = [int(part) for part in found["parts"].split(":")]
    # Without days the last of one or two parts are minutes and seconds, with days the first one is hours.
    hours = parts if found["days"] is not None or len(parts) == 3 else [0, *parts]
    hours += [0] * (3 - len(hours))
    return int(found["days"] or 0) * 86400.0 + hours[0] * 3600.0 + hours[1] * 60.0 + hours[2]


def _read(text: str) -> float:
    compact = text.replace(" ", "").lower()
    try:
        if ":" in compact:
            parts = [float(part) for part in compact.split(":")]
            if len(parts) > 3:
                return math.nan
            return sum(part * 60.0**place for place, part in enumerate(reversed(parts)))
        found = _UNITS.fullmatch(compact)
        given = {unit: part for unit, part in found.groupdict().items() if part} if found else {}
        return sum(float(part) * _SECONDS[unit] for unit, part in given.items()) if given else math.nan
    except ValueError:
        return math.nan
