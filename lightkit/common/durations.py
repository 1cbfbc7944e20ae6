"""Lengths of time as people type them: `90`, `30m`, `1h30m`, `1:30:00`; and those of Slurm."""

from __future__ import annotations

import math
import re

EXPECTED = "seconds above 0, or a text such as 90s, 30m, 2h, 1d, 1h30m or 1:30:00"
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
