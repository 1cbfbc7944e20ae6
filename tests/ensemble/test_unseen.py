"""Rows that no member trained on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.rows import unseen_by_all


def made(rows: dict[int, str], **more: Any) -> MemberPredictions:
    """Predictions of rows by number, with the split of each; `seen` rows were trained on."""
    counts = torch.tensor([int(split != "seen") for split in rows.values()])
    numbers = torch.tensor([*rows])
    predictions = torch.stack([numbers, -numbers], 1).float()
    predictions[counts == 0] = float("nan")
    return MemberPredictions(
        rows=numbers,
        split=torch.tensor([SPLITS.index(split) if split in SPLITS else 0 for split in rows.values()]).to(torch.uint8),
        counts=counts,
        predictions=predictions,
        targets=numbers % 2,
        task="multiclass",
        **more,
    )


def test_rows_that_any_member_trained_on_are_left_out() -> None:
    one = made({0: "val", 1: "test", 2: "test", 3: "train", 4: "seen", 9: "val"})
    other = made({3: "train", 2: "test", 1: "val", 0: "val", 4: "test", 7: "test"})
    found = unseen_by_all([one, other])
    assert [member.rows.tolist() for member in found] == [[3, 0, 1, 2]] * 2
    assert [SPLITS[number] for number in found[0].split.tolist()] == ["train", "val", "val", "test"]
    assert found[0].predictions[:, 0].tolist() == found[1].predictions[:, 0].tolist() == [3, 0, 1, 2]
    assert found[1].split.equal(found[0].split)


def test_nothing_may_be_left() -> None:
    assert not len(unseen_by_all([made({0: "val"}), made({0: "seen", 1: "val"})])[0])


@pytest.mark.parametrize(
    ("more", "message"), [({"data": "other"}, "different data"), ({"classes": ("b", "a")}, "other classes")]
)
def test_members_of_other_data_are_told_before_their_rows(more: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        unseen_by_all(
            [made({0: "val"}, data="" if "data" in more else "same"), made({5: "val"}, **{"data": "same"} | more)]
        )


def test_there_has_to_be_a_member() -> None:
    with pytest.raises(UserError, match="there are no members"):
        unseen_by_all([])
