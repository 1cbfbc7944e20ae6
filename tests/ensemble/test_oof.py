"""Predictions of members: files, the same rows, folds and repeats that add up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.ensemble.oof import MemberPredictions, aligned, pooled, stacked


def member(rows: list[int], values: Any = 0.5, *, counts: Any = 1, split: Any = 0, **facts: Any) -> MemberPredictions:
    """Predictions of a binary task; the target of a row is whether its number is odd, and a count of 0 gives NaN."""
    at = torch.tensor(rows, dtype=torch.int64)
    count = torch.as_tensor(counts).expand(len(rows)).clone()
    predictions = torch.as_tensor(values, dtype=torch.float32).expand(len(rows)).clone()[:, None]
    predictions[count == 0] = torch.nan
    shared = {"task": "binary", "data": "abc", "classes": ("no", "yes"), **facts}
    numbers = torch.as_tensor(split, dtype=torch.uint8).expand(len(rows)).clone()
    return MemberPredictions(at, numbers, count, predictions, (at % 2).float(), **shared)


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0))


def test_a_file_gives_back_what_was_written(tmp_path) -> None:
    path = tmp_path / "oof.safetensors"
    given = member([9, 3, 7, 1], [0.1, 0.2, 0.3, 0.4], counts=[1, 0, 2, 1], split=[2, 0, 1, 0], source="here")
    given.write(path)
    read = MemberPredictions.read(path)
    assert read.rows.tolist() == [1, 3, 7, 9]  # ordered by split, then row
    assert read.split.tolist() == [0, 0, 1, 2]
    assert read.counts.tolist() == [1, 0, 2, 1]
    assert same(read.predictions, torch.tensor([[0.4], [torch.nan], [0.3], [0.1]]))
    assert read.targets.tolist() == [1, 1, 1, 1]
    assert (read.task, read.data, read.classes, read.source) == ("binary", "abc", ("no", "yes"), str(path))
    read.write(path)
    assert same(MemberPredictions.read(path).predictions, read.predictions)
    assert [file.name for file in tmp_path.iterdir()] == ["oof.safetensors"]


def test_no_rows_and_one_row_can_be_written(tmp_path) -> None:
    for rows in ([], [4]):
        member(rows).write(tmp_path / "a")
        assert MemberPredictions.read(tmp_path / "a").rows.tolist() == rows


def test_splits_are_chosen_by_name() -> None:
    whole = member([0, 1, 2, 3], split=[0, 1, 2, 1])
    assert whole.of_split("val").rows.tolist() == [1, 3]
    assert whole.of_split("train", "test").rows.tolist() == [0, 2]
    assert whole.predicted.all()
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
        ({"targets": torch.zeros(1)}, "`targets`"),
        ({"task": "custom"}, "none of multiclass"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(member([0, 1]), **change)


def test_a_file_that_is_missing_damaged_or_another_is_refused(tmp_path) -> None:
    path = tmp_path / "oof.safetensors"
    with pytest.raises(UserError, match=r"cannot be read: .*[Nn]o such file"):
        MemberPredictions.read(path)
    path.write_text("not at all a file of tensors")
    with pytest.raises(UserError, match="holds no predictions of a member") as told:
        MemberPredictions.read(path)
    assert told.value.exit_code == 2
    assert told.value.key == str(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match="holds no predictions of a member"):
        MemberPredictions.read(path)
    member(list(range(50))).write(path)
    whole = path.read_bytes()
    for size in (len(whole) - 9, 60):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="the file is damaged"):
            MemberPredictions.read(path)


def test_a_file_of_other_content_is_refused(tmp_path) -> None:
    path = tmp_path / "oof.safetensors"
    facts = {"format": "lightkit.oof", "version": "1", "task": "binary", "data": "", "classes": "[]"}
    save_file({"rows": torch.arange(2)}, path, metadata=facts)
    with pytest.raises(UserError, match="damaged: it lacks 'split'"):
        MemberPredictions.read(path)
    save_file({"rows": torch.arange(2)}, path, metadata=facts | {"version": "2"})
    with pytest.raises(UserError, match="of version 2"):
        MemberPredictions.read(path)


def test_a_folder_that_is_not_there_is_told(tmp_path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        member([1]).write(tmp_path / "none" / "oof.safetensors")


def test_members_are_brought_to_the_same_rows() -> None:
    one = member([5, 1], [0.5, 0.1], split=[0, 2])
    two = member([3, 5], [0.3, 0.9], split=[1, 0])
    first, second = aligned([one, two])
    assert first.rows.tolist() == second.rows.tolist() == [5, 3, 1]
    assert first.split.tolist() == second.split.tolist() == [0, 1, 2]
    assert first.targets.tolist() == second.targets.tolist() == [1, 1, 1]
    assert first.counts.tolist() == [1, 0, 1]
    nan = torch.nan
    assert same(stacked([first, second])[..., 0], torch.tensor([[0.5, nan, 0.1], [0.9, 0.3, nan]]))
    alone = aligned([one])[0]
    assert same(stacked([alone])[0, :, 0], torch.tensor([0.5, 0.1]))


def test_predictions_average_by_counts_and_nobody_gives_nan() -> None:
    one = member([0, 1, 2, 3], [0.2, 0.4, 0.0, 0.0], counts=[1, 3, 0, 0])
    two = member([0, 1, 2], [0.6, 0.8, 0.5], counts=[1, 1, 2])
    both = pooled([one, two])
    assert both.counts.tolist() == [2, 4, 2, 0]
    assert torch.allclose(both.predictions[:3, 0], torch.tensor([0.4, 0.5, 0.5]))
    assert both.predictions[3].isnan().all()


def test_a_bag_grows_by_folds() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [
        member(torch.randperm(40, generator=generator)[:30].tolist(), torch.rand(30, generator=generator))
        for _ in range(6)
    ]
    at_once, grown = pooled(parts), pooled([pooled(parts[:4]), *parts[4:]])
    assert torch.equal(at_once.counts, grown.counts)
    assert torch.allclose(at_once.predictions, grown.predictions, atol=1e-6, equal_nan=True)
    assert same(pooled([parts[0]]).predictions, aligned([parts[0]])[0].predictions)


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
    other = dataclasses.replace(one, source="RUN2", **change)
    with pytest.raises(UserError, match=words) as told:
        aligned([one, other])
    assert told.value.key == "RUN2"


def test_targets_that_are_missing_alike_are_alike() -> None:
    one = dataclasses.replace(member([0, 1]), targets=torch.tensor([torch.nan, 1.0]))
    assert len(pooled([one, one])) == 2


def test_no_members_are_refused() -> None:
    with pytest.raises(UserError, match="there are no members"):
        pooled([])
