from __future__ import annotations

import math

import pytest

from lightkit.common.lengths import read_duration, read_slurm_time


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        *[(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400)],
        *[("1h30m", 5400), ("1h 30m 5s", 5405), ("1.5h", 5400), ("1:30:00", 5400), ("30:00", 1800), ("2H", 7200)],
    ],
)
def test_lengths_of_time(typed: float | str, seconds: float) -> None:
    assert read_duration(typed) == seconds


@pytest.mark.parametrize(
    "typed", [0, -1, "", "h", "soon", "30x", "1.2.3h", "-5m", "1:2:3:4", "1::2", math.inf, math.nan]
)
def test_what_is_no_length_of_time(typed: float | str) -> None:
    with pytest.raises(ValueError, match="not a length of time"):
        read_duration(typed)


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        *[(60, 3600), ("60", 3600), ("1:30", 90), ("12:00:00", 43200), ("1-0", 86400), ("1-12", 129600)],
        *[("1-12:30", 131400), ("2-00:00:05", 172805), ("UNLIMITED", None), ("soon", None), ("1:2:3:4", None)],
    ],
)
def test_times_of_slurm(typed: int | str, seconds: float | None) -> None:
    assert read_slurm_time(typed) == seconds
