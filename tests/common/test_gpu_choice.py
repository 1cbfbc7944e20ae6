from __future__ import annotations

import pytest

from lightkit.common.strategies import read_gpus


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([0, 2], (0, 2)),
        ((1,), (1,)),
        ("auto", 1),
        ("auto:1", 1),
        ("auto:12", 12),
        (["MIG-3d6e-1"], ("MIG-3d6e-1",)),
        ("MIG-GPU-5c89/7/0", ("MIG-GPU-5c89/7/0",)),
        (["GPU-ab", 1], ("GPU-ab", 1)),
    ],
)
def test_choices(value, expected):
    assert read_gpus(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0,2", "not a choice of GPUs"),
        ("auto:0", "not a choice of GPUs"),
        ("auto:", "not a choice of GPUs"),
        ("", "not a choice of GPUs"),
        ([], "this chooses no GPU"),
        ([0, 0], "a GPU is named twice"),
        ([-1], "not the numbers or UUIDs of GPUs"),
        ([True], "not the numbers or UUIDs of GPUs"),
        (["0"], "not the numbers or UUIDs of GPUs"),
        (["MIG-"], "not the numbers or UUIDs of GPUs"),
        (["GPU-a", "GPU-a"], "a GPU is named twice"),
    ],
)
def test_what_is_none(value, message):
    with pytest.raises(ValueError, match=message):
        read_gpus(value)
