from __future__ import annotations

import math

import pytest
import torch

from lightkit.checkpoint.compare import compare, leaves

NAN, INF = math.nan, math.inf


def test_nested_values_get_key_paths():
    nested = {"a": {"b": [1, {"c": 2}], "d": ()}, 3: torch.ones(1), "e": None}
    assert [key for key, _ in leaves(nested)] == ["a.b[0]", "a.b[1].c", "3", "e"]
    assert dict(leaves(5, "x")) == {"x": 5}


def test_the_same_is_the_same():
    values = [torch.tensor([1.0, NAN, INF]), torch.ones(0, 2), torch.tensor(True), NAN, 1.5, "x", None, b"x"]
    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
    assert compare(dict(zip("abcdefgh", values)), dict(zip("abcdefgh", copies))) == []


@pytest.mark.parametrize(
    ("one", "other", "what", "largest", "count"),
    [
        ([1.0, 2.0], [1.0, 2.5], "values", 0.5, 1),
        ([1.0, NAN], [1.0, 2.0], "values", NAN, 1),
        ([INF, INF], [-INF, INF], "values", INF, 1),
        ([0.0, 1.0], [-0.0, 1.0], "bits", 0.0, 0),
        ([True, False], [False, True], "values", 1.0, 2),
        ([1 + 1j], [1 + 4j], "values", 3.0, 1),
        ([1.0], [1], "type", None, None),
        ([1.0], [1.0, 2.0], "shape", None, None),
    ],
)
def test_tensors_that_differ(one, other, what, largest, count):
    (difference,) = compare({"x": torch.tensor(one)}, {"x": torch.tensor(other)})
    assert (difference.name, difference.what, difference.count) == ("x", what, count)
    assert difference.largest == largest or (math.isnan(largest) and math.isnan(difference.largest))


def test_names_small_differences_and_other_values():
    half = torch.ones(3, dtype=torch.bfloat16)
    one = {"a": 1, "b": 2, "d": "x" * 60, "h": half}
    differences = compare(one, {"b": 2.0, "c": torch.ones(2, 3), "d": "y", "h": half + 2**-7})
    by_name = {difference.name: difference for difference in differences}
    assert [(d.name, d.what) for d in differences] == [
        ("a", "only in the first"), ("b", "type"), ("d", "values"), ("h", "values"), ("c", "only in the second"),
    ]  # fmt: skip
    assert (by_name["b"].first, by_name["b"].second, by_name["c"].second) == ("2", "2.0", "2×3 float32")
    assert len(by_name["d"].first) == 40
    assert (by_name["h"].largest, by_name["h"].count, by_name["h"].first) == (2**-7, 3, "3 bfloat16")
