"""Labels beside those of rows nearby: wrong ones, and numbers taken for classes; hard classes are neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lightkit.data import DataInfo, TensorData
from lightkit.data.tables import breast_cancer, digits, wine
from tests.doctor.data.planted import Examine, bad, table


def with_wrong(data: TensorData, share: float) -> TensorData:
    """Give a share of the rows a label drawn from the others."""
    generator = torch.Generator().manual_seed(2)
    classes = int(data.y.max()) + 1
    other = (data.y + torch.randint(1, classes, data.y.shape, generator=generator)) % classes
    return TensorData(data.x, torch.where(torch.rand(len(data.y), generator=generator) < share, other, data.y))


def blobs(rows: int, classes: int, gap: float) -> TensorData:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (rows,), generator=generator)
    x = gap * torch.randn(classes, 8, generator=generator)[y] + torch.randn(rows, 8, generator=generator)
    return TensorData(x, y)


WRONG: dict[str, Callable[[], TensorData]] = {
    "digits, 40 %": lambda: with_wrong(digits(), 0.4),
    "digits, 25 %": lambda: with_wrong(digits(), 0.25),
    "three clouds": lambda: with_wrong(blobs(600, 3, 1.5), 0.4),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_labels_are_told(kind: str, examine: Examine) -> None:
    (found,) = bad(examine(WRONG[kind](), "answers"))
    assert found.check == "wrong labels"
    assert "show data" in found.fix


def test_two_classes_may_be_hard_as_well_as_wrong(examine: Examine) -> None:
    found = examine(with_wrong(blobs(800, 2, 3.0), 0.25), "answers")
    assert [(each.check, each.status) for each in found] == [("wrong labels", "note")]


def by_kind(rows: int = 1000) -> TensorData:
    """One feature is yes or no, and makes a class likely."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(rows, 5, generator=generator), torch.randint(3, (rows,), generator=generator)
    x[:, 0] = torch.where(
        torch.rand(rows, generator=generator) < 0.6, y, torch.randint(3, (rows,), generator=generator)
    )
    return TensorData(x, y)


def noise(rows: int = 800, classes: int = 2) -> TensorData:
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(rows, generator=generator) < 0.3).long() if classes == 2 else torch.randint(classes, (rows,))
    return TensorData(torch.randn(rows, 6, generator=generator), y)


HEALTHY: dict[str, Callable[[], TensorData]] = {
    "digits": digits,
    "wine": wine,
    "breast cancer": breast_cancer,
    "a weak relation": lambda: table(1000, 4),
    "clouds over each other": lambda: blobs(1000, 4, 0.6),
    "more clouds over each other": lambda: blobs(1500, 8, 0.7),
    "many near classes": lambda: blobs(2000, 30, 0.8),
    "many far classes": lambda: blobs(2000, 30, 3.0),
    "nothing to know": noise,
    "kinds of rows": by_kind,
    "a few wrong ones": lambda: with_wrong(digits(), 0.05),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_hard_classes_are_not_wrong(kind: str, examine: Examine) -> None:
    assert not bad(examine(HEALTHY[kind](), "answers"))


def ages(rows: int = 1200) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 6, generator=generator)
    age = (40 + 12 * x[:, 0] + 6 * x[:, 1] + 4 * torch.randn(rows, generator=generator)).round().clamp(18, 80)
    return x, age.long() - 18


@pytest.mark.parametrize("names", [(), tuple(map(str, range(18, 81)))])
def test_numbers_taken_for_classes_are_told(names: tuple[str, ...], examine: Examine) -> None:
    x, y = ages()
    (found,) = bad(examine(TensorData(x, y, DataInfo("multiclass", (6,), 63, names)), "answers"))
    assert found.check == "ordered classes"
    assert "loss=mse" in found.fix


def test_many_classes_with_names_are_classes(examine: Examine) -> None:
    x, y = ages()
    names = tuple(f"kind {number}" for number in range(63))
    assert not bad(examine(TensorData(x, y, DataInfo("multiclass", (6,), 63, names)), "answers"))
