from __future__ import annotations

import pytest

from lightkit.common.ranking import improves


@pytest.mark.parametrize(
    ("value", "best", "mode", "delta", "expected"),
    [
        (1.0, None, "max", 0.0, True),
        (float("nan"), None, "max", 0.0, False),
        (float("nan"), 0.5, "min", 0.0, False),
        (0.6, 0.5, "max", 0.0, True),
        (0.5, 0.5, "max", 0.0, False),
        (0.4, 0.5, "min", 0.0, True),
        (0.45, 0.5, "min", 0.1, False),
        (0.0, -0.5, "max", 0.0, True),
    ],
)
def test_improves(value: float, best: float | None, mode: str, delta: float, expected: bool) -> None:
    assert improves(value, best, mode=mode, min_delta=delta) is expected
