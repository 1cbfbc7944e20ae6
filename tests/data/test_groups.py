"""Groups of rows: where they are named, what is refused, and rows with the same inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.groups import check_whole, cut_in_order, deal, join_equal, marks_of, row_groups
from lightkit.data.tensors import TensorData

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 3, generator=GENERATOR), torch.arange(60) % 2
PATIENTS = torch.arange(60) // 4


class Samples(Dataset[Any]):
    """A data set that is read sample by sample."""

    def __init__(self, **more: Any) -> None:
        self.targets = Y
        vars(self).update(more)

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> Any:
        return X[row], int(Y[row])


def in_one_split(data: Any) -> bool:
    """Tell whether every patient is in one split, and every split is there."""
    parts = [set(PATIENTS[rows].tolist()) for rows in data.rows.values()]
    return len(parts) == 3 and sum(map(len, parts)) == len(set().union(*parts)) == 15


def named(form: str) -> Any:
    texts = [f"p{number}" for number in PATIENTS.tolist()]
    if form == "tensors":
        pair = TensorDataset(X, Y)
        pair.groups = PATIENTS  # type: ignore[attr-defined]
        return pair
    forms: dict[str, Any] = {"list": texts, "tuple": (*texts,), "numpy": np.array(texts), "numbers": PATIENTS.double()}
    return Samples(groups=forms[form]) if form != "numbers" else TensorData(X, Y, groups=forms[form])


@pytest.mark.parametrize("by", ["random", "stratified", "ordered", "fold"])
@pytest.mark.parametrize("form", ["list", "tuple", "numpy", "numbers", "tensors"])
def test_groups_of_a_data_set_stay_together_in_splits(form: str, by: str) -> None:
    data = build_data(dataset=named(form), split={"by": by, "val": 0.2})
    assert in_one_split(data)
    sizes = {name: len(rows) for name, rows in data.rows.items()}
    assert abs(sizes["val"] - 12) <= 4
    assert abs(sizes["test"] - 12) <= 4


def test_another_attribute_a_feature_and_none_are_named_by_a_key() -> None:
    assert in_one_split(build_data(dataset=Samples(patient=PATIENTS), split={"groups": "patient"}))
    x = torch.cat([X, PATIENTS[:, None]], 1)
    table = TensorData(x, Y, feature_names=["a", "b", "c", "patient"])
    assert in_one_split(build_data(dataset=table, split={"groups": "patient"}, normalize="standard"))
    one_hot = TensorData(torch.eye(15)[PATIENTS], Y, feature_names=[f"patient={i}" for i in range(15)])
    assert in_one_split(build_data(dataset=one_hot, split={"groups": "patient"}))
    assert not in_one_split(build_data(dataset=Samples(groups=PATIENTS), split={"groups": None}))
    assert build_data(dataset=Samples(groups=lambda: 1), split={}).groups is None


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (PATIENTS[:-1], "has to name one group for each row"),
        (PATIENTS[:, None], "has to name one group for each row"),
        (7, "has to name one group for each row"),
        ([None, *PATIENTS.tolist()[1:]], "row 0 has no group"),
        ([*PATIENTS.tolist()[:-1], float("nan")], "row 59 has no group"),
        (torch.arange(60) // 30, r"fewer groups \(2\) than splits \(3\)"),
    ],
)
def test_what_names_no_groups_is_refused(groups: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        build_data(dataset=Samples(groups=groups), split={})
    assert told.value.argument == "split.groups"
    with pytest.raises(UserError, match="fewer groups than folds"):
        build_data(dataset=Samples(groups=torch.arange(60) // 30), split={"by": "fold"})


def test_an_unknown_name_has_choices() -> None:
    with pytest.raises(UserError, match="no such attribute and no such feature") as told:
        row_groups(TensorData(X, Y, feature_names=["a", "b", "kind=x"]), "patient")
    assert told.value.choices == ("groups", "a", "b", "kind")


def test_given_splits_that_tear_groups_are_refused() -> None:
    splits = {"train": torch.arange(38), "val": torch.arange(38, 48), "test": torch.arange(48, 60)}
    with pytest.raises(UserError, match="rows 36 and 38 are of one group, but one is in train and one in val") as told:
        build_data(dataset=Samples(groups=PATIENTS, splits=splits), split={"by": "file"})
    assert told.value.argument == "split.groups"
    assert told.value.received == "1 of 15 groups in both"
    torn = {"train": torch.arange(38), "test": torch.arange(38, 60)}  # from which the validation rows are drawn
    with pytest.raises(UserError, match="one is in (train|test) and one in (train|test)"):
        build_data(dataset=Samples(groups=PATIENTS, splits=torn), split={"by": "random", "val": 0.2})
    whole = {"train": torch.arange(40), "test": torch.arange(40, 60)}
    drawn = build_data(dataset=Samples(groups=PATIENTS, splits=whole), split={"by": "random"})
    assert in_one_split(drawn)
    check_whole(whole, PATIENTS)


def test_rows_with_equal_inputs_join_groups() -> None:
    marks = marks_of([torch.tensor([[1.0], [2.0], [-0.0]]), torch.tensor([[0.0], [2.0], [5.0]])])
    assert marks is not None
    assert join_equal(torch.arange(8), torch.arange(1, 7), marks).tolist() == [0, 1, 2, 3, 3, 2, 6, 7]
    # A chain: groups 0 and 2 have a row in common, and 2 and 3.
    groups = torch.tensor([0, 0, 1, 2, 2, 3])
    marks = torch.tensor([10, 11, 12, 11, 14, 14])
    assert join_equal(groups, torch.arange(6), marks).tolist() == [0, 0, 1, 0, 0, 0]
    assert marks_of([{"a": 1}]) is None


@pytest.mark.parametrize("sampled", [False, True])
def test_training_rows_with_equal_inputs_belong_together(sampled: bool) -> None:
    x = torch.cat([X[:30], X[:30]])

    class Twice(Samples):
        def __getitem__(self, row: int) -> Any:
            return x[row], int(Y[row])

    splits = {"train": torch.arange(50), "test": torch.arange(50, 60)}
    data = build_data(
        dataset=Twice(splits=splits) if sampled else TensorData(x, Y, splits=splits), split={"by": "file", "val": 0}
    )
    together = data.together()
    assert together is not None
    assert torch.equal(together[:20], together[30:50])
    assert len(together[:30].unique()) == 30
    assert together[50:].tolist() == list(range(50, 60))  # test rows are not looked at
    assert data.together() is together
    assert build_data(dataset=TensorData(X, Y), split={}).together() is None


SHARES = [0.7, 0.1, 0.2]


def drawn(count: int, most: int, seed: int = 0) -> torch.Tensor:
    """Groups of 1 to `most` rows."""
    sizes = torch.randint(1, most + 1, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.arange(count).repeat_interleave(sizes)


@pytest.mark.parametrize("most", [1, 3, 40])
def test_no_group_is_torn_and_shares_hold(most: int) -> None:
    groups = drawn(300, most)
    part = deal(groups, None, SHARES, 3)
    for group in groups.unique():
        assert len(part[groups == group].unique()) == 1
    sizes = part.bincount(minlength=3) / len(groups)
    assert (sizes - torch.tensor(SHARES)).abs().max() <= 0.01
    assert torch.equal(deal(groups, None, SHARES, 3), part)
    assert not torch.equal(deal(groups, None, SHARES, 4), part)


def test_classes_keep_their_shares() -> None:
    groups = drawn(400, 3)
    classes = (torch.rand(len(groups), generator=torch.Generator().manual_seed(1)) < 0.15).long()
    part = deal(groups, classes, SHARES, 0)
    for own in (0, 1):
        sizes = part[classes == own].bincount(minlength=3) / (classes == own).sum()
        assert (sizes - torch.tensor(SHARES)).abs().max() <= 0.03


def test_a_large_group_goes_to_the_large_part_and_no_part_stays_empty() -> None:
    groups = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    assert deal(groups, None, SHARES, 0)[0] == 0
    for seed in range(5):
        assert len(deal(torch.arange(3).repeat_interleave(20), None, SHARES, seed).unique()) == 3


def test_single_rows_are_dealt_out_at_once_and_evenly() -> None:
    groups = torch.cat([torch.arange(100_000), torch.arange(50)])
    sizes = deal(groups, torch.arange(len(groups)) % 7, [1.0] * 5, 0).bincount()
    assert sizes.max() - sizes.min() <= 2


def test_cuts_in_order_move_to_the_next_border_of_groups() -> None:
    groups = torch.tensor([0] * 7 + [1] * 5 + [2] * 8)
    assert cut_in_order(groups, [10, 4, 6]) == [7, 5, 8]
    assert cut_in_order(torch.arange(20), [14, 2, 4]) == [14, 2, 4]
    assert cut_in_order(torch.tensor([0, 0, 1, 2, 2, 2]), [4, 1, 1]) == [2, 1, 3]


def test_groups_that_stand_mixed_cannot_be_cut_in_order() -> None:
    with pytest.raises(UserError, match="without tearing groups apart") as told:
        cut_in_order(torch.tensor([0, 1, 0, 1, 2]), [3, 1, 1])
    assert told.value.argument == "split.groups"
