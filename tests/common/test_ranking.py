from __future__ import annotations

from lightkit.common.ranking import improves


def test_improves() -> None:
    nan = float("nan")
    for value, best, mode, delta, expected in (
        *((1.0, None, "max", 0.0, True), (nan, None, "max", 0.0, False), (nan, 0.5, "min", 0.0, False)),
        *((0.6, 0.5, "max", 0.0, True), (0.5, 0.5, "max", 0.0, False), (0.4, 0.5, "min", 0.0, True)),
        *((0.45, 0.5, "min", 0.1, False), (0.0, -0.5, "max", 0.0, True)),
    ):
        assert improves(value, best, mode=mode, min_delta=delta) is expected
