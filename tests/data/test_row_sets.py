"""Rows that a data set names for its splits: what is taken, what is refused, and that nothing is trained on twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.data import TensorData, build_data
from lightkit.data.row_sets import listed_rows, split_named, split_sets
from lightkit.data.splits import SplitSpec
from tests.conftest import Outcome
from tests.refused import refused

N = 20
LAST = torch.arange(15, N)
FORMS = [
    LAST.to(torch.int32),
    tuple(LAST.tolist()),
    range(19, 14, -1),
    np.arange(15, N).astype(np.uint16),
    [np.int64(row) for row in range(15, N)],
    [torch.tensor(row) for row in range(15, N)],
    {*range(15, N)},
    torch.arange(N) >= 15,
    np.arange(N) >= 15,
    [row >= 15 for row in range(N)],
    slice(-5, None),
]


def taken(sets: Any) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in split_sets(sets, N).items()}


@pytest.mark.parametrize("rows", FORMS, ids=repr)
def test_every_kind_of_rows_is_taken_and_train_is_the_rest(rows: Any) -> None:
    sets = split_sets({"val": rows, "test": slice(10, 15)}, N)
    assert sets["train"].tolist() == [*range(10)]
    assert sorted(sets["val"].tolist()) == LAST.tolist()
    assert sets["test"].tolist() == [*range(10, 15)]
    assert all(isinstance(own, Tensor) and own.dtype == torch.int64 for own in sets.values())


class Named(list[int]):
    """Rows with names."""

    row_names = ("a.png", "b.png", "c.png")


def files_of(folder: Path, **texts: str) -> dict[str, str]:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    return {name: str(folder / f"{name}.txt") for name in texts}


def test_files_name_the_rows_of_splits(tmp_path: Path) -> None:
    files = files_of(tmp_path, validation="c.png\n\n", test="  a.png")
    assert listed_rows(files, Named(range(3))) == {"validation": [2], "test": [0]}
    assert listed_rows(files_of(tmp_path, train="1\r\n0", test="2"), range(3)) == {"train": [1, 0], "test": [2]}


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        ({"test": "2\nd.png\n3"}, "split.files.test … no rows of the data set … such as 0 … d.png, 3"),
        ({"train": "0", "test": "2"}, "split.files: rows are in none of the files … 1"),
    ],
)
def test_files_that_name_other_rows_are_refused(tmp_path: Path, texts: dict[str, str], text: str) -> None:
    refused(lambda: listed_rows(files_of(tmp_path, **texts), range(3)), text)
    refused(lambda: listed_rows({"test": str(tmp_path / "no.txt")}, range(3)), "split.files.test: cannot be read")


def test_a_row_in_two_files_is_refused(tmp_path: Path) -> None:
    split = {"files": files_of(tmp_path, val="0\n7", test="7"), "by": "random"}
    told = "split.files['test']: row 7 is in 'val' too"
    refused(lambda: build_data(dataset=TensorData(torch.zeros(9, 1), torch.arange(9) % 2), split=split), told)
    refused(lambda: SplitSpec(**{**split, "by": "fold"}), "split.files: folds are drawn")


def test_names_of_splits() -> None:
    for name in ("val", "valid", "validation", "dev", "VALIDATION", " Dev "):
        sets = taken({name: [19], "Training": range(10), "TEST": [18]})
        assert sets == {"train": [*range(10)], "val": [19], "test": [18]}
    assert taken(None) == taken({}) == taken({"val": None}) == {}
    assert taken({"val": None, "test": [19]})["train"] == [*range(19)]
    assert split_named(3) is split_named("unlabeled") is None


@pytest.mark.parametrize(
    ("sets", "text"),
    [
        ({"train": range(10), "val": range(8, 12)}, "splits['val']: 2 rows (8, 9) are in 'train' too"),
        ({"val": [1], "test": [1]}, "splits['test']: row 1 is in 'val' too"),
        ({"val": [3, 3, 4]}, "['val']: row 3 is there more than once"),
        ({"val": [20, 25]}, "2 rows (20, 25) are not in the data set … 0 to 19"),
        ({"val": [-1]}, "row -1 is not in the data set"),
        ({"val": slice(10, 30)}, "the slice reaches beyond"),
        ({"val": []}, "it has no rows"),
        ({"val": torch.zeros(N, dtype=torch.bool)}, "it has no rows"),
        ({"val": torch.ones(N - 1, dtype=torch.bool)}, "the mask is of another length … 20 values … 19"),
        ({"val": [0.0, 1.0]}, "not rows of the data set … float64"),
        ({"val": torch.ones(2, 1).long()}, "not rows of the data set … shape (2, 1)"),
        ({"val": "3"}, "not rows of the data set … str"),
        ({"val": ["a"]}, "not rows of the data set"),
        ({"val": [[1], [2, 3]]}, "not rows of the data set"),
        ({"val": 5}, "not rows of the data set"),
        ({"holdout": [1]}, "no name of a split … 'holdout' … validation"),
        ({0: [1]}, "no name of a split"),
        ({"val": [1], "validation": [2]}, "two names for the val split … val and validation"),
        ({"val": range(10), "test": range(10, N)}, "nothing is left to train on"),
        ([range(10)], "not the rows of each split … list"),
        ({"val": [3, 3, 50], "tset": [1], "train": [3]}, "more than once … row 50 … tset … 4 problems"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_refused_all_in_one_message(sets: Any, text: str) -> None:
    refused(lambda: split_sets(sets, N), text)


MODULE = """
import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

class Rows(Dataset):
    def __init__(self, kind):
        self.targets = torch.arange(100) % 2
        self.splits = {
            "named": {"Training": np.arange(60), "valid": np.arange(100) // 20 == 3, "TEST": slice(80, 100)},
            "wrong": {"train": range(61), "val": [60, 60, 100], "holdout": [-1]},
        }[kind]

    def __len__(self):
        return 100

    def __getitem__(self, row):
        return torch.randn(4) + self.targets[row], int(self.targets[row])

def tensors(kind):
    rows = Rows(kind)
    made = TensorDataset(torch.randn(100, 4), rows.targets)
    made.splits = rows.splits
    return made
"""


@pytest.mark.thorough
@pytest.mark.parametrize("made", ["Rows", "tensors"])
def test_rows_of_validation_and_test_are_not_trained_on(cli: Callable[..., Outcome], project: Path, made: str) -> None:
    (project / "own.py").write_text(MODULE)
    small = ("data=custom", f"data.dataset._target_=own.{made}", "trainer.epochs=1", "model.hidden=[4]", "device=cpu")
    done = cli("train", *small, "metrics.figures=[]", "+data.dataset.kind=named")
    assert done.code == 0, done.err
    assert "train 60, val 20, test 20" in done.out
    done = cli("train", *small, "+data.dataset.kind=wrong")
    assert done.code == 2
    assert "data.dataset.splits['val']: row 60 is there more than once" in done.err
    for text in ("row 100 is not in the data set", "row 60 is in 'train' too", "'holdout'"):
        assert text in done.err
    assert "Traceback" not in done.err
