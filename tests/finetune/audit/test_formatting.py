"""How numbers and names are written for people."""

from __future__ import annotations

import pytest

from lightkit.finetune.tables import format_bytes, format_names, format_percent, format_rate, format_rates


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001, "1e-3"),
        (0.05, "0.05"),
        (2.5e-5, "2.5e-5"),
        (1.0, "1"),
        (0.0, "0"),
        (300.0, "300"),
        (0.0123456, "0.0123"),
    ],
)
def test_rates_for_people(value: float, text: str) -> None:
    assert format_rate(value) == text


def test_words() -> None:
    assert format_rates([1e-4, 1e-3, 1e-5]) == "1e-4 -> 1e-3 -> 1e-5"
    assert format_rates([1e-3, 1e-3]) == "1e-3"
    assert format_rates([1e-3, 5e-4]) == "1e-3 -> 5e-4"
    assert (format_bytes(0), format_bytes(1023), format_bytes(2048), format_bytes(3 << 20), format_bytes(5 << 30)) == (
        "0 B",
        "1023 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    )
    assert (format_percent(1, 1000), format_percent(87, 100), format_percent(0, 0)) == ("0.1 %", "87 %", "0 %")
    assert (format_percent(9998, 10_000), format_percent(999, 1000), format_percent(994, 1000)) == (
        "99.98 %",
        "99.9 %",
        "99 %",
    )
    assert (format_percent(10**12 - 1, 10**12), format_percent(7, 7)) == ("99.9999999999 %", "100 %")
    assert format_names("abcdefg") == "a, b, c, d, e and 2 more"
