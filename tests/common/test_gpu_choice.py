from __future__ import annotations

import pytest

from lightkit.common.gpu_choice import read_gpus


@pytest.mark.parametrize(
    ("value", "expected"), [([0, 2], (0, 2)), ((1,), (1,)), ("auto", 1), ("auto:1", 1), ("auto:12", 12)]
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
        ([-1], "not the numbers of GPUs"),
        ([True], "not the numbers of GPUs"),
        (["0"], "not the numbers of GPUs"),
    ],
)
def test_what_is_none(value, message):
    with pytest.raises(ValueError, match=message):
        read_gpus(value)
