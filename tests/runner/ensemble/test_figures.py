"""Pictures of an ensemble."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lightkit.ensemble.combining import decisions
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner.ensemble.figures import draw, epochs, over_size
from tests.runner.ensemble.test_report import OUTPUTS, outcome


def accuracy(rows: MemberPredictions) -> dict[str, float]:
    return {"test/score": float((decisions(rows.predictions, rows.task) == rows.targets).float().mean())}


@pytest.mark.parametrize("task", OUTPUTS)
def test_what_is_defined_for_the_task_is_drawn(task: str) -> None:
    found = draw(outcome(task), None)
    classes = {"test/disagreement", "test/reliability"} if task != "regression" else set()
    assert set(found) == {"test/error_correlation", *classes}


def test_members_and_ensemble_over_epochs_and_size(tmp_path: Path) -> None:
    made = outcome()
    for member in made.members:
        (tmp_path / member.folder).mkdir()
        rows = [
            {"step": 5 * epoch, "epoch": epoch, "val/score": value} for epoch, value in ((1, 0.5), (2, None), (3, 1.0))
        ]
        text = "".join(json.dumps(row) + "\n" for row in [{"step": 1, "epoch": 0, "train/loss_step": 1.0}, *rows])
        (tmp_path / member.folder / "metrics.jsonl").write_text(text)
    members = [replace(member, folder=tmp_path / member.folder) for member in made.members]
    assert epochs(members, "val/score")["01"] == ([1, 3], [0.5, 1.0])
    sizes = over_size(made, accuracy)
    assert sizes is not None
    assert sizes.sizes == (1, 2, 3)
    assert [len(values) for values in sizes.drawn] == [3, 3, 1]
    unequal = {"00": 0.5, "01": 0.5, "02": 0.0}
    found = draw(replace(made, members=members, weights=unequal), sizes)
    assert {"val/members-over-epochs", "test/over_size", "val/weights"} <= set(found)


def test_sums_are_measured_in_their_order_only() -> None:
    sizes = over_size(replace(outcome(), rule="last"), accuracy)
    assert sizes is not None
    assert [len(values) for values in sizes.drawn] == [1, 1, 1]
    assert "test/error_correlation" not in draw(replace(outcome(), rule="last"), sizes)


def test_of_many_members_some_sizes_are_measured() -> None:
    sizes = over_size(outcome(size=40), accuracy)
    assert sizes is not None
    assert len(sizes.sizes) <= 16
    assert (sizes.sizes[0], sizes.sizes[-1]) == (1, 40)


def test_nothing_is_measured_of_one_member() -> None:
    assert over_size(outcome(size=1), accuracy) is None
