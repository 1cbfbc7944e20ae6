"""What is compared of two runs, and where their traces part."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from lightkit.runner.proving.comparison import (
    first_mismatch,
    flatten,
    read_trace,
    same_bits,
)


def test_bits_not_values_are_compared() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(nan, torch.tensor([float("nan"), -0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))
    assert not same_bits(1, 1.0)
    assert not same_bits(0.0, -0.0)
    assert same_bits(float("nan"), float("nan"))


def test_what_comes_from_the_clock_is_left_out() -> None:
    tree = {"time": 1, "last": {"speed/x": 1, "a": [1, {"b": 2}]}, "seconds": 3}
    assert dict(flatten(tree, "state")) == {"state.last.a[0]": 1, "state.last.a[1].b": 2}


def test_the_first_difference_of_two_traces(tmp_path: Path) -> None:
    rows = [
        {"phase": "start", "step": 0, "number": 0, "weights": "a"},
        {"phase": "micro", "step": 1, "number": 0, "batch": "b"},
        {"phase": "micro", "step": 1, "number": 0, "loss": "c"},
        {"phase": "step", "step": 1, "number": 0, "weights": "d", "rates": [1.0]},
        {"phase": "save", "step": 1, "number": 0, "what": "begin"},
    ]
    path = tmp_path / "trace"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"phase": "to')
    trace = read_trace(path)
    assert len(trace) == 4
    assert first_mismatch(trace, trace) is None
    for fact, index in (("batch", 1), ("loss", 1), ("weights", 2), ("rates", 2)):
        other = [dict(row) for row in trace]
        other[index][fact] = "x"
        found = first_mismatch(trace, other)
        assert found is not None
        assert (found.fact, found.row["step"]) == (fact, 1)
    resumed = {"phase": "start", "step": 1, "number": 0, "weights": "d", "rates": [0.1]}
    assert first_mismatch(trace, [resumed]) is None
    later = first_mismatch(trace, [{"phase": "micro", "step": 2, "number": 0}])
    assert later is not None
    assert str(later) == "what is done of step 2"
