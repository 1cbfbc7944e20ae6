from __future__ import annotations

from lightkit.common.ranking import improves, is_noise, mean_and_sd


def test_improves() -> None:
    nan = float("nan")
    for value, best, mode, delta, expected in (
        *((1.0, None, "max", 0.0, True), (nan, None, "max", 0.0, False), (nan, 0.5, "min", 0.0, False)),
        *((0.6, 0.5, "max", 0.0, True), (0.5, 0.5, "max", 0.0, False), (0.4, 0.5, "min", 0.0, True)),
        *((0.45, 0.5, "min", 0.1, False), (0.0, -0.5, "max", 0.0, True)),
    ):
        assert improves(value, best, mode=mode, min_delta=delta) is expected


def test_mean_and_sd_by_hand() -> None:
    assert mean_and_sd([]) == (None, None)
    assert mean_and_sd([2.0]) == (2.0, None)
    assert mean_and_sd([1.0, 2.0, 3.0]) == (2.0, 1.0)


def test_what_float32_rounds_away_is_noise() -> None:
    assert is_noise(0.5 - 0.5000001, [0.5])
    assert not is_noise(0.5 - 0.50001, [0.5])
