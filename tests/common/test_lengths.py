from __future__ import annotations

import math

import pytest

from lightkit.common.lengths import read_duration, read_slurm_time

SECONDS = """
90 90 | 90s 90 | 30m 1800 | 2h 7200 | 2H 7200 | 1d 86400 | 1h30m 5400 | 1h_30m_5s 5405 | 1.5h 5400 | 1:30:00 5400
| 30:00 1800
"""
SLURM = """
60 3600 | 1:30 90 | 12:00:00 43200 | 1-0 86400 | 1-12 129600 | 1-12:30 131400 | 2-00:00:05 172805
"""


def test_lengths_of_time() -> None:
    for pair in SECONDS.split("|"):
        typed, seconds = pair.split()
        assert read_duration(typed.replace("_", " ")) == float(seconds), typed
    assert (read_duration(90), read_duration(0.5)) == (90, 0.5)
    for typed in (0, -1, "", "h", "soon", "30x", "1.2.3h", "-5m", "1:2:3:4", "1::2", math.inf, math.nan):
        with pytest.raises(ValueError, match="not a length of time"):
            read_duration(typed)


def test_times_of_slurm() -> None:
    for pair in SLURM.split("|"):
        typed, seconds = pair.split()
        assert read_slurm_time(typed) == float(seconds), typed
    assert [read_slurm_time(typed) for typed in (60, "UNLIMITED", "soon", "1:2:3:4")] == [3600, None, None, None]
