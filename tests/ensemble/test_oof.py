"""Predictions of members: files, the same rows, folds and repeats that add up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sklearn.model_selection import StratifiedKFold, TimeSeriesSplit
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.oof import SPLITS, MemberPredictions, aligned, pooled, stacked, write_all
from lightkit.ensemble.rows import cut_holdout, member_rows, unseen_by_all

NAN = torch.nan


def member(rows: list[int], values: Any = 0.5, *, counts: Any = 1, split: Any = 0, **facts: Any) -> MemberPredictions:
    """Predictions of a binary task; the target of a row is whether its number is odd, and a count of 0 gives NaN."""
    at = torch.tensor(rows, dtype=torch.int64)
    count = torch.as_tensor(counts).expand(len(rows)).clone()
    predictions = torch.as_tensor(values, dtype=torch.float32).expand(len(rows)).clone()[:, None]
    predictions[count == 0] = NAN
    shared = {"task": "binary", "data": "abc", "classes": ("no", "yes"), **facts}
    numbers = torch.as_tensor(split, dtype=torch.uint8).expand(len(rows)).clone()
    return MemberPredictions(at, numbers, count, predictions, (at % 2).float(), **shared)


def same(one: Tensor, other: Any) -> bool:
    return torch.equal(one.nan_to_num(-7.0), torch.as_tensor(other).nan_to_num(-7.0))


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "oof.safetensors"
    given = member([9, 3, 7, 1], [0.1, 0.2, 0.3, 0.4], counts=[1, 0, 2, 1], split=[2, 0, 1, 0], source="here")
    given.write(path)
    read = MemberPredictions.read(path)
    assert read.rows.tolist() == [1, 3, 7, 9]  # ordered by split, then row
    assert read.split.tolist() == [0, 0, 1, 2]
    assert read.counts.tolist() == [1, 0, 2, 1]
    assert same(read.predictions, [[0.4], [NAN], [0.3], [0.1]])
    assert read.targets.tolist() == [1, 1, 1, 1]
    assert (read.task, read.data, read.classes, read.source) == ("binary", "abc", ("no", "yes"), str(path))
    read.write(path)
    assert same(MemberPredictions.read(path).predictions, read.predictions)
    assert [file.name for file in tmp_path.iterdir()] == ["oof.safetensors"]
    for rows in ([], [4]):
        member(rows).write(path)
        assert MemberPredictions.read(path).rows.tolist() == rows
    with pytest.raises(UserError, match="cannot be written"):
        read.write(tmp_path / "none" / "oof.safetensors")


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"classes": ("yes", "no")},
        {"counts": [1, 2, 0]},
        {"split": [0, 0, 2]},
        {"rows": [1, 3, 6]},
        {"rows": [1, 4, 5]},
        {"rows": [5, 3, 1], "split": [1, 0, 0]},
    ],
)
def test_files_of_several_members_are_those_of_each(tmp_path: Path, other: dict[str, Any]) -> None:
    facts: dict[str, Any] = {"rows": [1, 3, 5], "split": [0, 0, 1]}
    members = [member(**facts, values=0.1), member(**facts | other, values=0.2), member(**facts, values=0.3)]
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    write_all(members, paths)
    for own, path in zip(members, paths):
        own.write(tmp_path / "alone.safetensors")
        found, alone = (MemberPredictions.read(file) for file in (path, tmp_path / "alone.safetensors"))
        assert (found.task, found.data, found.classes) == (alone.task, alone.data, alone.classes)
        for name in ("rows", "split", "counts", "predictions", "targets"):
            assert same(getattr(found, name).float(), getattr(alone, name).float())


def test_splits_are_chosen_by_name() -> None:
    whole = member([0, 1, 2, 3], split=[0, 1, 2, 1])
    assert whole.of_split("val").rows.tolist() == [1, 3]
    assert whole.of_split("train", "test").rows.tolist() == [0, 2]
    with pytest.raises(ValueError, match="not in tuple"):
        whole.of_split("dev")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": torch.tensor([1, 1])}, "a row is there twice"),
        ({"rows": torch.tensor([-1, 1])}, "out of range"),
        ({"split": torch.tensor([0, 3], dtype=torch.uint8)}, "out of range"),
        ({"counts": torch.tensor([1, 0])}, "NaN stands elsewhere"),
        ({"predictions": torch.zeros(2)}, "`predictions` cannot be torch.float32 of shape"),
        ({"predictions": torch.zeros(3, 1)}, "for 2 rows"),
        ({"task": "custom"}, "none of multiclass"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(member([0, 1]), **change)


FACTS = {"format": "lightkit.oof", "version": "1", "task": "binary", "data": "", "classes": "[]"}


def test_a_file_that_is_missing_damaged_or_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "oof.safetensors"
    member(list(range(50))).write(path)
    whole = path.read_bytes()
    steps: list[tuple[str, Any]] = [
        (r"cannot be read: .*[Nn]o such file", path.unlink),
        ("holds no predictions of a member", lambda: path.write_text("not at all a file of tensors")),
        ("holds no predictions of a member", lambda: save_file({"weight": torch.zeros(3)}, path)),
        ("the file is damaged", lambda: path.write_bytes(whole[:-9])),
        ("the file is damaged", lambda: path.write_bytes(whole[:60])),
        ("damaged: it lacks 'split'", lambda: save_file({"rows": torch.arange(2)}, path, metadata=FACTS)),
        ("of version 2", lambda: save_file({"rows": torch.arange(2)}, path, metadata={**FACTS, "version": "2"})),
    ]
    for words, damage in steps:
        damage()
        with pytest.raises(UserError, match=words) as caught:
            MemberPredictions.read(path)
        assert (caught.value.exit_code, caught.value.key) == (2, str(path))


def test_members_are_brought_to_the_same_rows() -> None:
    one, two = member([5, 1], [0.5, 0.1], split=[0, 2]), member([3, 5], [0.3, 0.9], split=[1, 0])
    first, second = aligned([one, two])
    assert first.rows.tolist() == second.rows.tolist() == [5, 3, 1]
    assert first.split.tolist() == second.split.tolist() == [0, 1, 2]
    assert first.targets.tolist() == second.targets.tolist() == [1, 1, 1]
    assert first.counts.tolist() == [1, 0, 1]
    assert same(stacked([first, second])[..., 0], [[0.5, NAN, 0.1], [0.9, 0.3, NAN]])
    assert same(stacked(aligned([one]))[0, :, 0], [0.5, 0.1])


def test_predictions_average_by_counts_and_nobody_gives_nan() -> None:
    one = member([0, 1, 2, 3], [0.2, 0.4, 0.0, 0.0], counts=[1, 3, 0, 0])
    both = pooled([one, member([0, 1, 2], [0.6, 0.8, 0.5], counts=[1, 1, 2])])
    assert both.counts.tolist() == [2, 4, 2, 0]
    assert both.predictions[:, 0].tolist() == pytest.approx([0.4, 0.5, 0.5, NAN], nan_ok=True)
    generator = torch.Generator().manual_seed(0)
    parts = [member(torch.randperm(40, generator=generator)[:30].tolist(), torch.rand(30)) for _ in range(6)]
    at_once, grown = pooled(parts), pooled([pooled(parts[:4]), *parts[4:]])  # a bag grows by folds
    assert torch.equal(at_once.counts, grown.counts)
    assert torch.allclose(at_once.predictions, grown.predictions, atol=1e-6, equal_nan=True)
    missing = dataclasses.replace(member([0, 1]), targets=torch.tensor([NAN, 1.0]))
    assert len(pooled([missing, missing])) == 2, "targets that are missing alike are alike"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": "other"}, "different data"),
        ({"task": "multilabel"}, "different tasks"),
        ({"classes": ("yes", "no")}, "other classes, or in another order"),
        ({"predictions": torch.zeros(3, 2)}, "different numbers of outputs"),
        ({"targets": torch.zeros(3, 1)}, "targets of different shapes"),
        ({"targets": torch.tensor([0.0, 0.0, 0.0])}, "row 1 has another target than in RUN1"),
        (
            {"split": torch.tensor([0, 1, 1], dtype=torch.uint8)},
            "row 1 is in another split than in RUN1, and so 1 more",
        ),
    ],
)
def test_members_that_do_not_belong_together_are_refused(change: dict[str, Any], words: str) -> None:
    one = member([0, 1, 2], source="RUN1")
    with pytest.raises(UserError, match=words) as caught:
        aligned([one, dataclasses.replace(one, source="RUN2", **change)])
    assert caught.value.key == "RUN2"
    with pytest.raises(UserError, match="there are no members"):
        pooled([])


ROWS = torch.arange(10, 213)
STRATA = torch.tensor([0] * 110 + [1] * 70 + [2] * 40)[torch.randperm(220, generator=torch.Generator().manual_seed(0))]
GROUPS = torch.arange(220) // 7 * 5


def folds(count: int = 4, rows: Tensor = ROWS, **choice: Any) -> list[tuple[Tensor, Tensor]]:
    return [tuple(member_rows(rows, "folds", folds=count, fold=fold, **choice)) for fold in range(count)]


def test_all_rows_leave_none_to_predict() -> None:
    shuffled = ROWS.flip(0)
    assert [part.tolist() for part in member_rows(shuffled, "all")] == [ROWS.tolist(), []]
    assert member_rows(torch.tensor([7]), "bootstrap").training.tolist() == [7]
    assert member_rows(ROWS[:0], "bootstrap").training.tolist() == []


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
    assert [len(held) for _, held in folds(5, ROWS[:5])] == [1] * 5
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


@pytest.mark.parametrize(
    ("argument", "choice", "words"),
    [
        ("folds", {"rows": ROWS[:3]}, "fewer rows than folds"),
        ("folds", {"rows": ROWS[:4], "ordered": True}, "too few rows for folds in order of time"),
        ("folds", {"strata": (torch.arange(220) == 50).long()}, "class 1 has fewer rows than there are folds"),
        ("groups", {"groups": torch.arange(220) // 100}, r"fewer groups \(3\) than folds \(4\)"),
        ("groups", {"ordered": True, "groups": torch.zeros_like(GROUPS)}, "belong to groups that it holds out"),
        ("folds", {"count": 1}, "too few folds"),
        ("repeat", {"ordered": True, "repeat": 1}, "always the same"),
        ("repeat", {"repeat": -1}, "repeat"),
    ],
)
def test_what_cannot_be_folded_is_refused(argument: str, choice: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        folds(**choice)
    assert (caught.value.argument, caught.value.exit_code) == (argument, 2)


def test_choices_that_say_nothing_are_refused() -> None:
    bad: tuple[tuple[str, dict[str, Any]], ...] = (
        ("rows", {"kind": "some"}),
        ("rows", {"kind": "bootstrap", "ordered": True}),
        ("fold", {"kind": "folds"}),
        ("fold", {"kind": "folds", "fold": 5}),
    )
    for argument, choice in bad:
        with pytest.raises(UserError) as caught:
            member_rows(ROWS, **choice)
        assert caught.value.argument == argument


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


def test_a_rare_class_does_not_keep_rows_from_being_cut_off_but_too_few_rows_do() -> None:
    strata = torch.zeros(40, dtype=torch.int64)
    strata[:2] = 1
    assert len(cut_holdout(torch.arange(40), 0.1, 1, strata=strata).held_out) == 4
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
    split = torch.tensor([SPLITS.index(name) if name in SPLITS else 0 for name in rows.values()]).to(torch.uint8)
    return MemberPredictions(numbers, split, counts, predictions, numbers % 2, "multiclass", **more)


def test_rows_that_any_member_trained_on_are_left_out() -> None:
    one = made({0: "val", 1: "test", 2: "test", 3: "train", 4: "seen", 9: "val"})
    other = made({3: "train", 2: "test", 1: "val", 0: "val", 4: "test", 7: "test"})
    for member in unseen_by_all([one, other]):
        assert member.rows.tolist() == member.predictions[:, 0].tolist() == [3, 0, 1, 2]
        assert [SPLITS[number] for number in member.split.tolist()] == ["train", "val", "val", "test"]


def test_nothing_may_be_left_and_members_of_other_data_are_named_before_their_rows() -> None:
    assert not len(unseen_by_all([made({0: "val"}), made({0: "seen", 1: "val"})])[0])
    for more, message in (({"data": "other"}, "different data"), ({"classes": ("b", "a")}, "other classes")):
        with pytest.raises(UserError, match=message):
            unseen_by_all([made({0: "val"}), made({5: "val"}, **more)])
