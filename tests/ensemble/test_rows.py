"""Which rows members train on: draws, folds that keep classes, groups and time, and what cannot be divided."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.model_selection import StratifiedKFold, TimeSeriesSplit
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.rows import cut_holdout, member_rows, unseen_by_all

ROWS = torch.arange(10, 213)
STRATA = torch.tensor([0] * 110 + [1] * 70 + [2] * 40)[torch.randperm(220, generator=torch.Generator().manual_seed(0))]
GROUPS = torch.arange(220) // 7 * 5


def folds(count: int = 4, rows: Tensor = ROWS, **choice: Any) -> list[tuple[Tensor, Tensor]]:
    return [tuple(member_rows(rows, "folds", folds=count, fold=fold, **choice)) for fold in range(count)]


def test_all_rows_leave_none_to_predict() -> None:
    shuffled = ROWS.flip(0)
    assert [part.tolist() for part in member_rows(shuffled, "all")] == [ROWS.tolist(), []]


def test_bootstrap_draws_with_replacement_and_holds_out_the_rest() -> None:
    trained, held = member_rows(ROWS, "bootstrap", 3, 1)
    assert len(trained) == len(ROWS)
    assert torch.equal(trained, trained.sort().values)
    assert torch.equal(torch.cat([trained.unique(), held]).sort().values, ROWS)
    assert 0.3 < len(held) / len(ROWS) < 0.45  # 1/e
    assert torch.equal(member_rows(ROWS.flip(0), "bootstrap", 3, 1).training, trained)
    for draw, index in ((4, 1), (3, 2)):
        assert not torch.equal(member_rows(ROWS, "bootstrap", draw, index).training, trained)


def test_bootstrap_takes_whole_groups() -> None:
    trained, held = member_rows(ROWS, "bootstrap", 0, 0, groups=GROUPS)
    assert not set(GROUPS[trained].tolist()) & set(GROUPS[held].tolist())
    times = trained.bincount(minlength=220)
    for group in GROUPS[ROWS].unique():
        assert len(times[ROWS][GROUPS[ROWS] == group].unique()) == 1


def test_bootstrap_of_one_row_and_of_none() -> None:
    assert member_rows(torch.tensor([7]), "bootstrap").training.tolist() == [7]
    assert member_rows(ROWS[:0], "bootstrap").training.tolist() == []


@pytest.mark.parametrize("strata", [None, STRATA])
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_folds_are_a_partition(strata: Tensor | None, groups: Tensor | None) -> None:
    divided = folds(strata=strata, groups=groups)
    assert torch.equal(torch.cat([held for _, held in divided]).sort().values, ROWS)
    for trained, held in divided:
        assert torch.equal(torch.cat([trained, held]).sort().values, ROWS)
        assert torch.equal(trained, trained.sort().values)
        assert torch.equal(held, held.sort().values)
        if groups is not None:
            assert not set(groups[trained].tolist()) & set(groups[held].tolist())
    sizes = [len(held) for _, held in divided]
    assert max(sizes) - min(sizes) <= (1 if groups is None else 12)


def test_folds_keep_shares_as_scikit_learn_does() -> None:
    ours = torch.stack([STRATA[held].bincount() for _, held in folds(strata=STRATA)])
    theirs = [STRATA[ROWS[at]].bincount() for _, at in StratifiedKFold(4).split(ROWS, STRATA[ROWS])]
    assert (ours.amax(0) - ours.amin(0)).max() <= 1
    assert torch.equal(ours.sort(0).values, torch.stack(theirs).sort(0).values)


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_repeats_and_draws_deal_out_anew_and_members_do_not(groups: Tensor | None) -> None:
    first = folds(groups=groups)[0][1]
    assert torch.equal(folds(groups=groups, index=3)[0][1], first)
    assert not torch.equal(folds(groups=groups, repeat=1)[0][1], first)
    assert not torch.equal(folds(groups=groups, draw=1)[0][1], first)


@pytest.mark.parametrize(("rows", "count"), [(203, 4), (20, 5), (11, 10), (3, 2)])
def test_order_of_time_is_scikit_learns(rows: int, count: int) -> None:
    at = ROWS[:rows]
    expected = list(TimeSeriesSplit(count).split(at))
    for (trained, held), (before, after) in zip(folds(count, at.flip(0), ordered=True), expected):
        assert torch.equal(trained, at[before])
        assert torch.equal(held, at[after])
        assert trained.max() < held.min()


def test_order_of_time_keeps_groups_apart() -> None:
    for trained, held in folds(ordered=True, groups=GROUPS):
        assert len(trained)
        assert not set(GROUPS[trained].tolist()) & set(GROUPS[held].tolist())
    with pytest.raises(UserError, match="belong to groups that it holds out") as told:
        folds(ordered=True, groups=torch.zeros_like(GROUPS))
    assert told.value.argument == "groups"


@pytest.mark.parametrize(
    ("argument", "choice", "words"),
    [
        ("folds", {"rows": ROWS[:3]}, "fewer rows than folds"),
        ("folds", {"rows": ROWS[:4], "ordered": True}, "too few rows for folds in order of time"),
        ("folds", {"strata": (torch.arange(220) == 50).long()}, "class 1 has fewer rows than there are folds"),
        ("groups", {"groups": torch.arange(220) // 100}, r"fewer groups \(3\) than folds \(4\)"),
        ("folds", {"count": 1}, "too few folds"),
        ("repeat", {"ordered": True, "repeat": 1}, "always the same"),
        ("repeat", {"repeat": -1}, "repeat"),
    ],
)
def test_what_cannot_be_folded_is_refused(argument: str, choice: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        folds(**choice)
    assert told.value.argument == argument
    assert told.value.exit_code == 2


@pytest.mark.parametrize(
    ("argument", "choice"),
    [
        ("rows", {"kind": "some"}),
        ("rows", {"kind": "bootstrap", "ordered": True}),
        ("fold", {"kind": "folds"}),
        ("fold", {"kind": "folds", "fold": 5}),
    ],
)
def test_choices_that_say_nothing_are_refused(argument: str, choice: dict[str, Any]) -> None:
    with pytest.raises(UserError) as told:
        member_rows(ROWS, **choice)
    assert told.value.argument == argument


def test_as_many_folds_as_rows_leave_one_out() -> None:
    assert [len(held) for _, held in folds(5, ROWS[:5])] == [1] * 5


def test_a_share_is_cut_off_before_the_folds() -> None:
    rows, strata = torch.arange(0, 180, 2), torch.arange(200) // 50 % 2
    cut = cut_holdout(rows, 1 / 9, 4, strata=strata)
    assert len(cut.held_out) == 10
    assert torch.cat([cut.training, cut.held_out]).sort().values.tolist() == rows.tolist()
    assert strata[cut.held_out].sum() == pytest.approx(10 * strata[rows].float().mean().item(), abs=1)
    assert torch.equal(cut_holdout(rows, 1 / 9, 4, strata=strata).held_out, cut.held_out)
    assert not torch.equal(cut_holdout(rows, 1 / 9, 5, strata=strata).held_out, cut.held_out)
    assert not len(cut_holdout(rows, 0, 4).held_out)


def test_what_is_cut_off_keeps_groups_and_time() -> None:
    rows, groups = torch.arange(60), torch.arange(60) // 4
    cut = cut_holdout(rows, 0.2, 1, groups=groups)
    assert not set(groups[cut.held_out].tolist()) & set(groups[cut.training].tolist())
    cut = cut_holdout(rows, 0.25, 1, ordered=True)
    assert cut.held_out.min() > cut.training.max()


def test_a_rare_class_does_not_keep_rows_from_being_cut_off() -> None:
    strata = torch.zeros(40, dtype=torch.int64)
    strata[:2] = 1
    assert len(cut_holdout(torch.arange(40), 0.1, 1, strata=strata).held_out) == 4


def test_a_share_that_cannot_be_cut_off_is_refused() -> None:
    with pytest.raises(UserError, match="not a share of the training rows that can be held out"):
        cut_holdout(torch.arange(40), 0.7, 1)
    with pytest.raises(UserError, match="no part of 1/10 of the training rows can be held out"):
        cut_holdout(torch.arange(5), 0.1, 1)


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
