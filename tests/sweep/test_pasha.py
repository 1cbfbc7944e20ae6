from __future__ import annotations

import math

import pytest

from lightkit.sweep.pasha import agree, noise_of

BEFORE = {"a": 0.9, "b": 0.8, "c": 0.79}


@pytest.mark.parametrize(
    ("now", "noise", "same"),
    [
        ({"a": 0.95, "b": 0.9, "c": 0.8}, 0.0, True),
        ({"a": 0.95, "b": 0.8, "c": 0.9}, 0.0, False),
        ({"a": 0.95, "b": 0.8, "c": 0.9}, 0.011, True),
        ({"a": 0.7, "b": 0.8, "c": 0.9}, 0.05, False),
    ],
)
def test_jobs_may_change_places_within_the_noise_only(now, noise, same):
    assert agree(BEFORE, now, mode="max", noise=noise) is same
    turned = ({name: -value for name, value in values.items()} for values in (BEFORE, now))
    assert agree(*turned, mode="min", noise=noise) is same


def test_noise_is_the_distance_of_jobs_that_overtake_each_other_twice():
    steady, crossing = {1: 0.1, 2: 0.2, 3: 0.3}, {1: 0.15, 2: 0.15, 3: 0.34}
    assert noise_of([steady, crossing]) == pytest.approx(0.04)
    assert noise_of([steady, {1: 0.2, 2: 0.1, 3: 0.2}]) == 0.0, "it is overtaken once"
    assert noise_of([steady, {1: 0.2, 2: math.nan, 3: 0.4}]) == 0.0
    assert noise_of([]) == 0.0
