"""Targets that cannot be learned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.data import DataInfo, TensorData
from tests.doctor.data.planted import Examine, Rows, bad, drawn, labelled, only, table

LABELS, BALANCE, CONFLICTS = "labels", "class balance", "conflicting labels"


@pytest.mark.parametrize(
    "data",
    [
        labelled(drawn(200)),
        labelled(drawn(200, high=2).float(), DataInfo("binary", (4,), 1)),
        labelled(drawn(200, 5, high=2).float(), DataInfo("multilabel", (4,), 5)),
        labelled(torch.randn(200, generator=torch.Generator().manual_seed(1))),
    ],
    ids=["multiclass", "binary", "multilabel", "regression"],
)
def test_healthy_targets_raise_no_alarm(data: TensorData, examine: Examine) -> None:
    assert not bad(examine(data, "labels"))


def test_labels_that_count_from_one_are_recognised(examine: Examine) -> None:
    found = only(examine(labelled(drawn(200) + 1), "labels"), LABELS)
    assert found.status == "warning"
    assert "count from 1" in found.measured
    assert found.fix == "count labels from 0"


def test_a_class_that_only_test_has_is_an_error(examine: Examine) -> None:
    y = torch.cat([drawn(150, high=2), torch.full((50,), 2)])
    found = only(examine(labelled(y), "labels", split={"by": "ordered"}), LABELS)
    assert found.status == "error"
    assert found.numbers["lacking"] == [2]
    assert found.fix == "data.split.by=stratified"


def test_classes_with_a_handful_of_rows_are_told(examine: Examine) -> None:
    y = torch.cat([drawn(300, high=2), torch.full((3,), 2)])
    found = only(examine(labelled(y), "labels"), LABELS)
    assert found.status == "warning"
    assert found.numbers["few"] == ["2"]


@pytest.mark.parametrize("label", [-1, 3, 255])
def test_labels_out_of_range_are_an_error(label: int, examine: Examine) -> None:
    class Lazy(Rows):
        """Gives all labels at once under a name of its own, so that nothing looked at them before."""

    y = drawn(200).tolist()
    samples = [(torch.randn(3), value) for value in y]
    samples[7] = (samples[7][0], label)
    found = examine(Lazy(samples, classes=3), "labels", split={"val": 0.5, "test": 0})
    assert "out of range" in bad(found, LABELS)[0].measured


def test_a_sample_that_cannot_be_read_is_an_error_with_its_row(examine: Examine) -> None:
    class Broken(Rows):
        def __getitem__(self, row: int) -> Any:
            if row == 5:
                raise OSError("truncated file")
            return self.samples[row]

    data = Broken([(torch.randn(3), row % 2) for row in range(60)], targets=[row % 2 for row in range(60)])
    found = bad(examine(data, "labels"), LABELS)
    assert found[0].status == "error"
    assert "sample 5 of the data set could not be read" in found[0].measured


def test_a_label_that_is_never_given_is_found(examine: Examine) -> None:
    y = drawn(300, 4, high=2).float()
    y[:, 2] = 0.0
    found = examine(labelled(y, DataInfo("multilabel", (4,), 4, ("a", "b", "c", "d"))), "labels")
    assert bad(found, LABELS)[0].numbers["lacking"] == [2]
    assert only(found, BALANCE).numbers["rarest"] == "c"


def test_one_input_with_two_labels_is_found(examine: Examine) -> None:
    base = table(400)
    other = (base.y[:60] + 1) % 3
    both = TensorData(torch.cat([base.x, base.x[:60]]), torch.cat([base.y, other]))
    found = only(examine(both, "labels"), CONFLICTS)
    assert found.status == "warning"
    assert found.numbers["share"] > 0.1


def test_a_data_set_that_gives_the_same_input_each_time_is_found(examine: Examine) -> None:
    same = torch.randn(3, 8, 8)
    data = Rows([(same, row % 2) for row in range(100)], targets=[row % 2 for row in range(100)])
    found = only(examine(data, "labels"), CONFLICTS)
    assert found.status == "error"
    assert "only 1 different inputs" in found.measured


def test_coarse_inputs_with_two_labels_raise_no_alarm(examine: Examine) -> None:
    data = TensorData(drawn(400, 5, high=2).float(), drawn(400, seed=9))
    assert not bad(examine(data, "labels"), CONFLICTS)


def test_a_target_that_never_changes_is_an_error(examine: Examine) -> None:
    assert only(examine(labelled(torch.full((100,), 2.5)), "labels"), LABELS).status == "error"


def test_targets_of_a_custom_task_are_left_to_it(examine: Examine) -> None:
    found = examine(Rows([{"x": torch.zeros(3)}] * 40), "labels")
    assert {finding.status for finding in found} == {"skipped"}


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
