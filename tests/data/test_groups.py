"""Groups of rows: where they are named, what is refused, and rows with the same inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from lightkit.data import build_data
from lightkit.data.groups import check_whole, cut_in_order, deal, join_equal, marks_of
from lightkit.data.tensors import TensorData
from tests.refused import refused

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 3, generator=GENERATOR), torch.arange(60) % 2
PATIENTS = torch.arange(60) // 4
TEXTS = [f"p{number}" for number in PATIENTS.tolist()]


class Samples(Dataset[Any]):
    """A data set that is read sample by sample."""

    def __init__(self, **more: Any) -> None:
        self.targets = Y
        vars(self).update(more)

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> Any:
        return X[row], int(Y[row])


def pair() -> Any:
    made: Any = TensorDataset(X, Y)
    made.groups = PATIENTS
    return made


def in_one_split(dataset: Any, **split: Any) -> bool:
    """Tell whether every patient is in one split, and every split is there, of about its size."""
    data = build_data(dataset=dataset, split=split)
    parts = [set(PATIENTS[rows].tolist()) for rows in data.rows.values()]
    assert not split.get("val") or all(abs(len(data.rows[name]) - 12) <= 4 for name in ("val", "test"))
    return len(parts) == 3 and sum(map(len, parts)) == len(set().union(*parts)) == 15


FORMS = [Samples(groups=TEXTS), Samples(groups=(*TEXTS,)), Samples(groups=np.array(TEXTS)), pair(),
         TensorData(X, Y, groups=PATIENTS.double())]  # fmt: skip


@pytest.mark.parametrize("by", ["random", "stratified", "ordered", "fold"])
@pytest.mark.parametrize("dataset", FORMS, ids=["list", "tuple", "numpy", "tensors", "numbers"])
def test_groups_of_a_data_set_stay_together_in_splits(dataset: Any, by: str) -> None:
    assert in_one_split(dataset, by=by, val=0.2)


def test_another_attribute_a_feature_and_none_are_named_by_a_key() -> None:
    assert in_one_split(Samples(patient=PATIENTS), groups="patient")
    table = TensorData(torch.cat([X, PATIENTS[:, None]], 1), Y, feature_names=["a", "b", "c", "patient"])
    assert in_one_split(table, groups="patient")
    one_hot = TensorData(torch.eye(15)[PATIENTS], Y, feature_names=[f"patient={i}" for i in range(15)])
    assert in_one_split(one_hot, groups="patient")
    assert not in_one_split(Samples(groups=PATIENTS), groups=None)
    assert build_data(dataset=Samples(groups=lambda: 1), split={}).groups is None


HALVES = torch.arange(60) // 30
TORN = {"train": torch.arange(38), "val": torch.arange(38, 48), "test": torch.arange(48, 60)}


@pytest.mark.parametrize(
    ("groups", "more", "split", "text"),
    [
        (PATIENTS[:-1], {}, {}, "has to name one group for each row"),
        (PATIENTS[:, None], {}, {}, "has to name one group for each row"),
        (7, {}, {}, "has to name one group for each row"),
        ([None, *PATIENTS.tolist()[1:]], {}, {}, "row 0 has no group"),
        ([*PATIENTS.tolist()[:-1], float("nan")], {}, {}, "row 59 has no group"),
        (HALVES, {}, {}, "fewer groups (2) than splits (3)"),
        (HALVES, {}, {"by": "fold"}, "fewer groups than folds"),
        (PATIENTS, {"splits": TORN}, {"by": "file"}, "rows 36 and 38 are of one group, but one is in train … 1 of 15"),
        # From its training rows the validation rows are drawn.
        (PATIENTS, {"splits": {"test": torch.arange(38, 60)}}, {"val": 0.2}, "one is in t … and one in t"),
    ],
)  # fmt: skip
def test_what_names_no_groups_is_refused(groups: Any, more: Any, split: Any, text: str) -> None:
    told = refused(lambda: build_data(dataset=Samples(groups=groups, **more), split=split), text)
    assert told.argument == ("split.folds" if split == {"by": "fold"} else "split.groups")


def test_given_splits_that_are_whole_are_kept() -> None:
    splits = {"train": torch.arange(40), "test": torch.arange(40, 60)}
    assert in_one_split(Samples(groups=PATIENTS, splits=splits), by="random")
    check_whole(splits, PATIENTS)


def test_a_group_that_time_would_tear_is_refused() -> None:
    data = TensorData(X, Y, groups=PATIENTS, times=torch.arange(60))
    refused(lambda: build_data(dataset=data, split={"by": "time"}), "split.groups: the splits tear groups apart")
    assert build_data(dataset=data, split={"by": "time", "groups": None}).rows["test"].tolist() == [*range(48, 60)]


def test_rows_with_equal_inputs_join_groups() -> None:
    marks = marks_of([torch.tensor([[1.0], [2.0], [-0.0]]), torch.tensor([[0.0], [2.0], [5.0]])])
    assert marks is not None
    assert join_equal(torch.arange(8), torch.arange(1, 7), marks).tolist() == [0, 1, 2, 3, 3, 2, 6, 7]
    # A chain: groups 0 and 2 have a row in common, and 2 and 3.
    groups, marks = torch.tensor([0, 0, 1, 2, 2, 3]), torch.tensor([10, 11, 12, 11, 14, 14])
    assert join_equal(groups, torch.arange(6), marks).tolist() == [0, 0, 1, 0, 0, 0]
    assert marks_of([{"a": 1}]) is None


@pytest.mark.parametrize("sampled", [False, True])
def test_training_rows_with_equal_inputs_belong_together(sampled: bool) -> None:
    x, splits = torch.cat([X[:30], X[:30]]), {"train": torch.arange(50), "test": torch.arange(50, 60)}

    class Twice(Samples):
        def __getitem__(self, row: int) -> Any:
            return x[row], int(Y[row])

    dataset = Twice(splits=splits) if sampled else TensorData(x, Y, splits=splits)
    data = build_data(dataset=dataset, split={"by": "file", "val": 0})
    together = data.together()
    assert together is not None
    assert torch.equal(together[:20], together[30:50])
    assert len(together[:30].unique()) == 30
    assert together[50:].tolist() == list(range(50, 60))  # test rows are not looked at
    assert data.together() is together
    assert build_data(dataset=TensorData(X, Y), split={}).together() is None


SHARES = torch.tensor([0.7, 0.1, 0.2])


def off(groups: torch.Tensor, classes: torch.Tensor | None, seed: int) -> float:
    """Deal groups out, none of them torn, and return by how much a share is missed at most, of each class alone."""
    part = deal(groups, classes, SHARES.tolist(), seed)
    assert all(len(part[groups == group].unique()) == 1 for group in groups.unique())
    of_class = [part] if classes is None else [part[classes == own] for own in classes.unique()]
    return float(max((own.bincount(minlength=3) / len(own) - SHARES).abs().max() for own in of_class))


def drawn(count: int, most: int) -> torch.Tensor:
    """Groups of 1 to `most` rows."""
    sizes = torch.randint(1, most + 1, (count,), generator=torch.Generator().manual_seed(0))
    return torch.arange(count).repeat_interleave(sizes)


def test_no_group_is_torn_and_shares_hold() -> None:
    assert max(off(drawn(300, most), None, 3) for most in (1, 3, 40)) <= 0.01
    groups = drawn(400, 3)
    classes = (torch.rand(len(groups), generator=torch.Generator().manual_seed(1)) < 0.15).long()
    assert off(groups, classes, 0) <= 0.03
    parts = [deal(groups, None, SHARES.tolist(), seed) for seed in (3, 3, 4)]
    assert torch.equal(parts[0], parts[1])
    assert not torch.equal(parts[0], parts[2])


def test_a_large_group_goes_to_the_large_part_and_no_part_stays_empty() -> None:
    assert deal(torch.tensor([0] * 60 + [1] * 30 + [2] * 10), None, SHARES.tolist(), 0)[0] == 0
    for seed in range(5):
        assert len(deal(torch.arange(3).repeat_interleave(20), None, SHARES.tolist(), seed).unique()) == 3


def test_single_rows_are_dealt_out_at_once_and_evenly() -> None:
    groups = torch.cat([torch.arange(100_000), torch.arange(50)])
    sizes = deal(groups, torch.arange(len(groups)) % 7, [1.0] * 5, 0).bincount()
    assert sizes.max() - sizes.min() <= 2


def test_cuts_in_order_move_to_the_next_border_of_groups() -> None:
    groups = torch.tensor([0] * 7 + [1] * 5 + [2] * 8)
    assert cut_in_order(groups, [10, 4, 6]) == [7, 5, 8]
    assert cut_in_order(torch.arange(20), [14, 2, 4]) == [14, 2, 4]
    assert cut_in_order(torch.tensor([0, 0, 1, 2, 2, 2]), [4, 1, 1]) == [2, 1, 3]
    mixed = torch.tensor([0, 1, 0, 1, 2])
    told = refused(lambda: cut_in_order(mixed, [3, 1, 1]), "without tearing groups apart")
    assert told.argument == "split.groups"
