"""What is another after a resume, from the state that traces tell of."""

from __future__ import annotations

from typing import Any

import pytest

from lightkit.runner.proving.unsaved import Snapshots, UnsavedValue, find_unsaved, lost_paths

PATH = "trainer.callbacks.mine.count"


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
