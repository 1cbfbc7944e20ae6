"""Numbers outside their range are refused in one way."""

from __future__ import annotations

import math

import pytest

from lightkit.common.errors import UserError
from lightkit.common.ranges import check_range


@pytest.mark.parametrize(
    ("value", "bounds", "expected"),
    [
        (0, {"low": 1}, "1 or more"),
        (math.nan, {"low": 1}, "1 or more"),
        (1.5, {"low": 0, "high": 1}, "0 to 1"),
        (1.0, {"low": 0, "below": 1}, "0 to below 1"),
    ],
)
def test_numbers_out_of_range(value: float, bounds: dict[str, float], expected: str) -> None:
    with pytest.raises(UserError, match=rf"share: too small\n.*expected: +{expected}\n.*received: +{value}"):
        check_range(value, "share", "too small", **bounds)


@pytest.mark.parametrize(
    ("value", "bounds"), [(None, {"low": 1}), (1, {"low": 1, "high": 1}), (0.0, {"low": 0, "below": 1})]
)
def test_numbers_in_range(value: float | None, bounds: dict[str, float]) -> None:
    check_range(value, "share", **bounds)
