"""What is compared of two runs, and where their traces part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.runner.proving.comparison import (
    Snapshots,
    UnsavedValue,
    find_unsaved,
    first_mismatch,
    flatten,
    lost_paths,
    read_trace,
    same_bits,
)

PATH = "trainer.callbacks.mine.count"


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


def trace(values: dict[int, int], *, refills: bool = False) -> Snapshots:
    """A run that begins at the first of these steps, saves at those between and ends at the last."""
    *saved, last = values
    phases = {saved[0]: "start", **dict.fromkeys(saved[1:], "live"), last: "end"}
    rows: list[dict[str, Any]] = [
        {"phase": phases[step], "step": step, "live": {PATH: [f"digest {value}", str(value), refills]}}
        for step, value in values.items()
    ]
    return Snapshots(rows)


WHOLE = {0: 0, 2: 2, 4: 4, 6: 6}


def test_a_value_that_is_taken_back_is_saved() -> None:
    resumed = trace({2: 2, 4: 4, 6: 6})
    assert find_unsaved(trace(WHOLE), trace(WHOLE), resumed) == []
    assert lost_paths(trace(WHOLE), resumed) == []


def test_a_value_that_starts_anew_is_not() -> None:
    resumed = trace({2: 0, 4: 2, 6: 4})
    (found,) = find_unsaved(trace(WHOLE), trace(WHOLE), resumed)
    assert str(found) == f"{PATH}: 6 after training, 4 after the resume"
    assert "state_dict()" in found.fix
    assert lost_paths(trace(WHOLE), resumed) == [PATH]


@pytest.mark.parametrize("refills", [False, True])
def test_a_value_that_is_the_same_in_the_end_counts_unless_it_is_a_cache(refills: bool) -> None:
    resumed = trace({2: 0, 4: 4, 6: 6}, refills=refills)
    found = find_unsaved(trace(WHOLE), trace(WHOLE), resumed)
    assert [str(item) for item in found] == (
        [] if refills else [f"{PATH}: 2 at step 2, 0 right after the resume there"]
    )


def test_what_two_whole_runs_do_not_have_in_common_is_no_fault_of_the_resume() -> None:
    assert find_unsaved(trace(WHOLE), trace({0: 0, 2: 3, 4: 5, 6: 7}), trace({2: 0, 4: 1, 6: 2})) == []


@pytest.mark.parametrize("path", ["model.calls", "loss.last", "data.dataset.cache", "metrics.val.mine.seen", "optim.x"])
def test_every_part_has_a_fix(path: str) -> None:
    assert UnsavedValue(path, "").fix
