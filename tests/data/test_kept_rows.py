"""The rows of splits as they are kept, and data that have changed under their old numbers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.data import DataInfo, TensorData, build_data
from lightkit.data.kept_rows import KeptRows, Renumbered, renumbered
from lightkit.data.sources import as_source
from lightkit.data.tensors import Taker

ROWS = {"train": torch.arange(6), "val": torch.tensor([6, 7]), "test": torch.tensor([9])}


def tensors(numbers: list[int], **more: Any) -> TensorData:
    x = torch.tensor(numbers).float()[:, None]
    return TensorData(x, torch.tensor(numbers) % 2, DataInfo("multiclass", (1,), 2), **more)


class Sampled:
    """Read sample by sample, with names for its rows and a value for each in many forms."""

    def __init__(self, numbers: list[int], repeated: bool = False) -> None:
        self.numbers, self.classes = numbers, ("even", "odd")
        self.row_names = ["one"] * len(numbers) if repeated else [f"{number}.txt" for number in numbers]
        self.targets = torch.tensor(numbers) % 2
        self.groups, self.patients = [f"g{number}" for number in numbers], np.array(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(self.numbers[row])]), self.numbers[row] % 2


class Whole:
    """Makes whole batches."""

    exact = True
    info = DataInfo("multiclass", (1,), 2, ("even", "odd"), fingerprint="now")

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = torch.tensor(numbers)
        self.row_names = [str(number) for number in numbers]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.numbers[rows].float()[:, None], self.numbers[rows] % 2


@pytest.mark.parametrize("make", [tensors, Sampled, lambda numbers: Sampled(numbers, repeated=True)])
def test_what_is_kept_comes_back(make: Any) -> None:
    kept = KeptRows.of(as_source(make([*range(10)])), ROWS)
    again = KeptRows.from_bytes(kept.to_bytes())
    assert {name: rows.tolist() for name, rows in again.rows().items()} == {n: r.tolist() for n, r in ROWS.items()}
    assert (again.names, again.fingerprint, again.drawn) == (kept.names, kept.fingerprint, False)
    assert (again.marks is None) == (kept.marks is None)


def test_what_holds_no_rows_is_refused() -> None:
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY", KeptRows(torch.zeros(3).byte(), "").to_bytes()[:-9]):
        with pytest.raises(ValueError, match="."):
            KeptRows.from_bytes(content)
    for splits, marks in (([0, 0, 0], torch.zeros(2).long()), ([0, 4], None)):
        with pytest.raises(ValueError, match="do not fit"):
            KeptRows(torch.tensor(splits).byte(), "", marks=marks)


@pytest.mark.parametrize("make", [tensors, Sampled, Whole])
def test_changed_data_have_their_old_numbers(make: Any) -> None:
    kept = KeptRows.of(as_source(make([*range(10)])), ROWS)
    source = as_source(make([11, *range(9, 0, -1), 12]))
    now = kept.find(source)
    assert now is not None
    assert now.tolist() == [-1, *range(9, 0, -1)]
    old = renumbered(source, now, kept.fingerprint)
    assert (len(old), old.info.fingerprint) == (10, kept.fingerprint)
    assert isinstance(old, Taker) == isinstance(source, Taker)
    data = build_data(dataset=old, split={}, rows={"train": torch.arange(1, 8), "test": torch.tensor([9])})
    inputs, targets = next(iter(data.evaluation("train").epoch(0)))  # type: ignore[union-attr]
    assert inputs[:, 0].tolist() == [*range(1, 8)]
    assert targets.tolist() == [1, 0, 1, 0, 1, 0, 1]
    data.close()
    if make is not tensors:
        with pytest.raises(IndexError, match="row 0 is no longer"):
            old[0] if make is Sampled else old.take(torch.tensor([0]))


def test_attributes_of_each_row_are_in_the_old_order() -> None:
    seen = copy.copy(Renumbered(Sampled([5, 6, 7]), torch.tensor([2, 0, 1, 0])))
    assert seen.groups == ["g7", "g5", "g6", "g5"]
    assert seen.patients.tolist() == [7, 5, 6, 5]
    assert seen.targets.tolist() == [1, 1, 0, 1]
    assert seen.classes == ("even", "odd")
    changed = renumbered(tensors([1, 2, 3], strata=torch.tensor([7, 8, 9])), torch.tensor([2, 1, 0]), "mark")
    assert changed.strata.tolist() == [9, 8, 7]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bool])
def test_rows_are_told_apart_by_all_of_their_bits(dtype: torch.dtype) -> None:
    x = torch.zeros(40, 7).to(dtype)
    x[torch.arange(20), torch.arange(20) % 7] = (torch.arange(20) // 7 + 1).to(dtype)
    x[:, 6] += (torch.arange(40) % 2).to(dtype)
    kept = KeptRows.of(as_source(TensorData(x, torch.arange(40) % 2, DataInfo("multiclass", (7,), 2))), {})
    assert kept.marks is not None
    assert len(kept.marks.unique()) == len({(*tuple(row), i % 2) for i, row in enumerate(x.tolist())})


def test_equal_rows_are_paired_one_by_one() -> None:
    now = KeptRows.of(tensors([4, 4, 5, 4]), {}).find(tensors([4, 6, 4]))
    assert now is not None
    assert now.tolist() == [0, 2, -1, -1]
