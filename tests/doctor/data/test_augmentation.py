"""What augmentation does to samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.data.tables import digits, digits_multilabel
from lightkit.data.transforms import RandomAffine, RandomErasing, RandomFlip, RandomShift
from tests.doctor.data.planted import Examine, Rows, bad

AUGMENTATION, EVALUATION = "augmentation", "evaluation inputs"


class UpsideDown:
    """Turns a sample upside down, always."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.flip(-2)


class NoisyRows(Rows):
    """Adds noise to each sample that is asked for, whatever for."""

    def __getitem__(self, row: int) -> Any:
        x, y = self.samples[row]
        return x + 0.1 * torch.randn(x.shape), y


@pytest.mark.parametrize("data", [digits(), digits_multilabel()], ids=["classes", "labels"])
def test_small_turns_and_moves_are_fine(data: Any, examine: Examine) -> None:
    found = examine(data, "augmentation", augment=[RandomAffine(degrees=10, scale=0.1, translate=0.1)])
    assert [finding.status for finding in found if finding.check == AUGMENTATION] == ["ok", "ok"]
    assert not bad(found)


@pytest.mark.parametrize("transform", [RandomFlip(0.0), RandomShift(0), UpsideDown()], ids=["never", "by 0", "same"])
def test_a_transform_that_does_the_same_each_time_is_found(transform: Any, examine: Examine) -> None:
    found = bad(examine(digits(), "augmentation", augment=[transform]))
    assert found
    assert found[0].numbers["varied"] == 0


@pytest.mark.parametrize("transform", [RandomShift(8), RandomErasing(1.0, 0.9, 1.0)], ids=["out of sight", "erased"])
def test_a_transform_after_which_nothing_is_left_is_named(transform: Any, examine: Examine) -> None:
    augment = [RandomAffine(degrees=5), transform]
    found = bad(examine(digits(), "augmentation", augment=augment), AUGMENTATION)
    assert found[0].key == "data.augment[1]"
    assert found[0].numbers["transform"] == type(transform).__name__
    assert found[0].numbers["with"] < 0.4 < found[0].numbers["without"]


def test_a_flip_that_turns_one_class_into_another_is_found(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 3
    x = 0.1 * torch.rand(400, 1, 12, 12, generator=generator)
    x[y == 0, :, :, :4] += 1.0  # left
    x[y == 1, :, :, 8:] += 1.0  # right
    x[y == 2, :, 4:8] += 1.0  # middle
    data = Rows([(image, int(label)) for image, label in zip(x, y)], targets=y.tolist())
    found = bad(examine(data, "augmentation", augment=[RandomFlip()]), AUGMENTATION)
    assert found
    assert set(found[0].numbers["lost"]) <= {"0", "1"}
    assert not bad(examine(data, "augmentation", augment=[RandomFlip(vertical=True)]))


def test_a_data_set_that_augments_validation_rows_is_found(examine: Examine) -> None:
    data = NoisyRows([(torch.zeros(4), row % 2) for row in range(80)], targets=[row % 2 for row in range(80)])
    found = bad(examine(data, "augmentation"), EVALUATION)
    assert [finding.numbers["split"] for finding in found] == ["val", "test"]


def test_no_augmentation_and_no_pairs_are_skipped(examine: Examine) -> None:
    assert examine(digits(), "augmentation")[0].status == "skipped"
    assert {finding.status for finding in examine(Rows([{"x": torch.zeros(3)}] * 40), "augmentation")} == {"skipped"}
