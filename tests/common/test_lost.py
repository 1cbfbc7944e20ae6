"""Telling that a worker process is gone."""

from __future__ import annotations

import pytest

from lightkit.common.lost import is_dead_worker


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), True),
        (RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"), True),
        (RuntimeError("DataLoader timed out after 5 seconds"), False),
        (ValueError("DataLoader worker (pid 7) is killed by signal: Killed. "), False),
    ],
)
def test_is_dead_worker(error: Exception, expected: bool) -> None:
    assert is_dead_worker(error) == expected
