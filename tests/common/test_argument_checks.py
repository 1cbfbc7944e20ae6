"""Arguments that a part refuses by itself."""

from __future__ import annotations

import math
import re

import pytest

from lightkit.common.argument_checks import check_choice, check_cycles, check_range, check_rates
from lightkit.common.errors import UserError


def test_values_that_are_valid() -> None:
    check_choice("kind", "plain", ["plain", "other"])
    check_range("length", 1, low=1)
    check_range("dropout", 0.0, low=0, below=1)
    check_range("share", 1.0, above=0, high=1)
    check_range("limit", None, low=1)


def test_a_value_that_is_no_choice() -> None:
    with pytest.raises(UserError, match=r"^kind: no such kind(.|\n)*received: 'plian'(.|\n)*nearest: plain") as caught:
        check_choice("kind", "plian", ["plain", "other"], "no such kind")
    assert caught.value.choices == ("plain", "other")


@pytest.mark.parametrize(
    ("value", "limits", "expected"),
    [
        (0, {"low": 1}, "1 or more"),
        (1.0, {"low": 0, "below": 1}, "0 to below 1"),
        (0.0, {"above": 0, "high": 1}, "above 0 to 1"),
        (1.5, {"above": 0, "high": 1}, "above 0 to 1"),
        (math.inf, {"above": 0}, "above 0, and finite"),
        (math.nan, {"low": 0}, "0 or more, and finite"),
    ],
)
def test_a_number_out_of_range(value: float, limits: dict[str, float], expected: str) -> None:
    with pytest.raises(UserError, match=rf"^size: out of range\n +expected: +{re.escape(expected)}\n"):
        check_range("size", value, **limits)


def test_rules_that_a_method_and_the_configuration_share() -> None:
    check_cycles(5, 20)
    check_rates(0.1, 0.5)
    for epochs, steps, argument in (
        (7, None, "epochs"),
        (None, None, "epochs"),
        (None, 50, "steps"),
        (20, 50, "steps"),
    ):
        with pytest.raises(UserError, match=f"^{argument}: the cycles do not divide"):
            check_cycles(5, epochs, steps)
    for low in (0.0, 0.5, 0.6):
        with pytest.raises(UserError, match="^low: a cycle needs a smaller and a larger rate"):
            check_rates(low, 0.5)
