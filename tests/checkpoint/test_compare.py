from __future__ import annotations

import math

import pytest
import torch

from lightkit.checkpoint.compare import compare, flat

NAN, INF = math.nan, math.inf


def test_nested_values_get_key_paths():
    nested = {"a": {"b": [1, {"c": 2}], "d": ()}, 3: torch.ones(1), "e": None}
    assert list(flat(nested)) == ["a.b[0]", "a.b[1].c", "3", "e"]
    assert flat(5, "x") == {"x": 5}


@pytest.mark.parametrize(
    "value", [torch.tensor([1.0, NAN, INF]), torch.ones(0, 2), torch.tensor(True), NAN, 1.5, "x", None, b"x"]
)
def test_the_same_is_the_same(value):
    other = value.clone() if isinstance(value, torch.Tensor) else value
    assert compare({"x": value}, {"x": other}) == []


@pytest.mark.parametrize(
    ("one", "other", "what", "largest", "count"),
    [
        ([1.0, 2.0], [1.0, 2.5], "values", 0.5, 1),
        ([1.0, NAN], [1.0, 2.0], "values", NAN, 1),
        ([INF, INF], [-INF, INF], "values", INF, 1),
        ([0.0, 1.0], [-0.0, 1.0], "bits", 0.0, 0),
        ([1, 2], [4, 2], "values", 3.0, 1),
        ([True, False], [False, True], "values", 1.0, 2),
        ([1 + 1j], [1 + 4j], "values", 3.0, 1),
        ([1.0], [1], "type", None, None),
        ([1.0], [1.0, 2.0], "shape", None, None),
    ],
)
def test_tensors_that_differ(one, other, what, largest, count):
    (found,) = compare({"x": torch.tensor(one)}, {"x": torch.tensor(other)})
    assert (found.name, found.what, found.count) == ("x", what, count)
    assert found.largest == largest or (math.isnan(largest) and math.isnan(found.largest))


def test_half_precision_and_small_differences():
    one = torch.ones(3, dtype=torch.bfloat16)
    (found,) = compare({"x": one}, {"x": one + 2**-7})
    assert (found.largest, found.count, found.first) == (2**-7, 3, "3 bfloat16")


def test_names_and_other_values():
    found = compare({"a": 1, "b": 2, "d": "x" * 60}, {"b": 2.0, "c": torch.ones(2, 3), "d": "y"})
    assert [(d.name, d.what) for d in found] == [
        ("a", "only in the first"), ("b", "type"), ("d", "values"), ("c", "only in the second"),
    ]  # fmt: skip
    assert (found[1].first, found[1].second, found[3].second) == ("2", "2.0", "2×3 float32")
    assert len(found[2].first) == 40
