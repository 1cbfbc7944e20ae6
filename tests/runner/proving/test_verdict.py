"""What two traces have in common."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from lightkit.runner.proving.trace import digest
from lightkit.runner.proving.verdict import first_difference, flat, read_trace, same


def test_bits_not_values_are_compared() -> None:
    nan = torch.tensor([float("nan"), 0.0])
    assert same(nan, nan.clone())
    assert not same(nan, torch.tensor([float("nan"), -0.0]))
    assert not same(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not same(torch.zeros(2), torch.zeros(1, 2))
    assert not same(1, 1.0)
    assert not same(0.0, -0.0)
    assert same(float("nan"), float("nan"))
    assert digest([nan, {"a": 1}]) == digest([nan.clone(), {"a": 1}]) != digest([nan, {"a": 2}])
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, dtype=torch.int32))


def test_what_comes_from_the_clock_is_left_out() -> None:
    tree = {"time": 1, "last": {"speed/x": 1, "a": [1, {"b": 2}]}, "seconds": 3}
    assert dict(flat(tree, "state")) == {"state.last.a[0]": 1, "state.last.a[1].b": 2}


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
    assert first_difference(trace, trace) is None
    for fact, index in (("batch", 1), ("loss", 1), ("weights", 2), ("rates", 2)):
        other = [dict(row) for row in trace]
        other[index][fact] = "x"
        found = first_difference(trace, other)
        assert found is not None
        assert (found.fact, found.row["step"]) == (fact, 1)
    resumed = {"phase": "start", "step": 1, "number": 0, "weights": "d", "rates": [0.1]}
    assert first_difference(trace, [resumed]) is None
    later = first_difference(trace, [{"phase": "micro", "step": 2, "number": 0}])
    assert later is not None
    assert str(later) == "what is done of step 2"
