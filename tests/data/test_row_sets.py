"""Rows that a data set names for its splits: what is taken, what is refused, and that nothing is trained on twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.data.row_sets import split_named, split_sets
from tests.conftest import Outcome

N = 20
LAST = torch.arange(15, N)


def taken(sets: Any) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in split_sets(sets, N).items()}


@pytest.mark.parametrize(
    "rows",
    [
        LAST,
        LAST.to(torch.int32),
        LAST.tolist(),
        tuple(LAST.tolist()),
        range(15, N),
        range(19, 14, -1),
        np.arange(15, N),
        np.arange(15, N).astype(np.uint16),
        [np.int64(row) for row in range(15, N)],
        [torch.tensor(row) for row in range(15, N)],
        {*range(15, N)},
        torch.arange(N) >= 15,
        np.arange(N) >= 15,
        [row >= 15 for row in range(N)],
        slice(15, None),
        slice(-5, None),
        slice(15, 20),
    ],
    ids=repr,
)
def test_every_kind_of_rows_is_taken_and_train_is_the_rest(rows: Any) -> None:
    found = split_sets({"val": rows, "test": slice(10, 15)}, N)
    assert found["train"].tolist() == [*range(10)]
    assert sorted(found["val"].tolist()) == LAST.tolist()
    assert found["test"].tolist() == [*range(10, 15)]
    assert all(isinstance(own, Tensor) and own.dtype == torch.int64 for own in found.values())


@pytest.mark.parametrize("name", ["val", "valid", "validation", "dev", "Val", "VALIDATION", " Dev "])
def test_names_of_validation(name: str) -> None:
    assert taken({name: [19], "Training": range(10), "TEST": [18]}) == {
        "train": [*range(10)],
        "val": [19],
        "test": [18],
    }


def test_no_splits_are_none_and_none_is_not_named() -> None:
    assert taken(None) == taken({}) == taken({"val": None}) == {}
    assert taken({"val": None, "test": [19]})["train"] == [*range(19)]
    assert split_named(3) is split_named("unlabeled") is None


@pytest.mark.parametrize(
    ("sets", "texts"),
    [
        ({"train": range(10), "val": range(8, 12)}, [r"splits\['val'\]: 2 rows \(8, 9\) are in 'train' too"]),
        ({"val": [1], "test": [1]}, [r"splits\['test'\]: row 1 is in 'val' too"]),
        ({"val": [3, 3, 4]}, [r"\['val'\]: row 3 is there more than once"]),
        ({"val": [20, 25]}, [r"2 rows \(20, 25\) are not in the data set", "0 to 19"]),
        ({"val": [-1]}, ["row -1 is not in the data set"]),
        ({"val": slice(10, 30)}, ["the slice reaches beyond"]),
        ({"val": []}, ["it has no rows"]),
        ({"val": torch.zeros(N, dtype=torch.bool)}, ["it has no rows"]),
        ({"val": torch.ones(N - 1, dtype=torch.bool)}, ["the mask is of another length", "20 values", "19"]),
        ({"val": [0.0, 1.0]}, ["not rows of the data set", "float64"]),
        ({"val": torch.ones(2, 1).long()}, ["not rows of the data set", r"shape \(2, 1\)"]),
        ({"val": "3"}, ["not rows of the data set", "str"]),
        ({"val": ["a"]}, ["not rows of the data set"]),
        ({"val": [[1], [2, 3]]}, ["not rows of the data set"]),
        ({"val": 5}, ["not rows of the data set"]),
        ({"holdout": [1]}, ["no name of a split", "'holdout'", "validation"]),
        ({0: [1]}, ["no name of a split"]),
        ({"val": [1], "validation": [2]}, ["two names for the val split", "val and validation"]),
        ({"val": range(10), "test": range(10, N)}, ["nothing is left to train on"]),
        ([range(10)], ["not the rows of each split", "list"]),
        ({"val": [3, 3, 50], "tset": [1], "train": [3]}, ["more than once", "row 50", "tset", "4 problems"]),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_refused_all_in_one_message(sets: Any, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(UserError, match=text):
            split_sets(sets, N)


MODULE = """
import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

class Rows(Dataset):
    def __init__(self, kind="rest"):
        self.targets = torch.arange(100) % 2
        self.splits = {
            "rest": {"val": range(60, 80), "test": [*range(80, 100)]},
            "named": {"Training": np.arange(60), "valid": np.arange(100) // 20 == 3, "TEST": slice(80, 100)},
            "wrong": {"train": range(61), "val": [60, 60, 100], "holdout": [-1]},
        }[kind]

    def __len__(self):
        return 100

    def __getitem__(self, row):
        return torch.randn(4) + self.targets[row], int(self.targets[row])

def tensors(kind="rest"):
    rows = Rows(kind)
    made = TensorDataset(torch.randn(100, 4), rows.targets)
    made.splits = rows.splits
    return made
"""
SMALL = ("data=custom", "trainer.epochs=1", "model.hidden=[4]", "device=cpu", "metrics.figures=[]")


@pytest.mark.parametrize("made", ["Rows", "tensors"])
def test_rows_of_validation_and_test_are_not_trained_on(cli: Callable[..., Outcome], project: Path, made: str) -> None:
    (project / "own.py").write_text(MODULE)
    done = cli("train", *SMALL, f"data.dataset._target_=own.{made}", "+data.dataset.kind=named")
    assert done.code == 0, done.err
    assert "train 60, val 20, test 20" in done.out


@pytest.mark.parametrize("ensemble", ["none", "voting"])
def test_wrong_rows_end_the_run_before_it_begins(cli: Callable[..., Outcome], project: Path, ensemble: str) -> None:
    (project / "own.py").write_text(MODULE)
    done = cli("train", *SMALL, "data.dataset._target_=own.Rows", "+data.dataset.kind=wrong", f"ensemble={ensemble}")
    assert done.code == 2
    for text in ("data.dataset.splits['val']: row 60 is there more than once", "row 100 is not in the data set"):
        assert text in done.err
    assert "row 60 is in 'train' too" in done.err
    assert "'holdout'" in done.err
    assert "Traceback" not in done.err
    assert not (project / "outputs" / "runs").exists()
