"""Targets that are distributed unevenly, or otherwise from split to split."""

from __future__ import annotations

import pytest
import torch

from tests.doctor.data.planted import Examine, bad, drawn, labelled, only

BALANCE = "class balance"


def test_rare_classes_are_a_warning_unless_the_run_minds_them(examine: Examine) -> None:
    y = (torch.rand(2000, generator=torch.Generator().manual_seed(0)) < 0.03).long()
    found = only(examine(labelled(y), "labels"), BALANCE)
    assert found.status == "warning"
    assert found.key == "metrics.monitor"
    assert found.numbers["most_frequent"] > 0.95
    assert only(examine(labelled(y), "labels", monitor="val/f1"), BALANCE).status == "note"
    assert only(examine(labelled(y), "labels", loss={"weight": [1.0, 30.0]}), BALANCE).status == "note"


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_sorted_rows_that_are_cut_in_order_drift(task: str, examine: Examine) -> None:
    y = drawn(600).sort().values if task == "multiclass" else torch.linspace(0, 1, 600)
    found = bad(examine(labelled(y), "order", split={"by": "ordered"}))
    assert [each.check for each in found] == ["row order"]  # once
    assert not bad(examine(labelled(y), "order", split={"by": "random"}))
