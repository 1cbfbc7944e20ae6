"""Splits are exact partitions, repeatable, and refuse what cannot be split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.data.splits import WAYS, SplitSpec, split_rows

STRATA = torch.tensor([0] * 50 + [1] * 30 + [2] * 23)
N = len(STRATA)


def draw(strata: Tensor | None = STRATA, given: dict[str, Tensor] | None = None, **spec: Any) -> dict[str, Tensor]:
    return split_rows(SplitSpec(**spec), N, strata=strata, given=given)


@pytest.mark.parametrize("by", ["stratified", "random", "ordered", "fold"])
@pytest.mark.parametrize("shares", [(0.1, 0.2), (0.0, 0.2), (0.15, 0.0), (0.0, 0.0)])
def test_each_row_is_in_one_split(by: str, shares: tuple[float, float]) -> None:
    rows = draw(by=by, val=shares[0], test=shares[1])
    assert torch.equal(torch.cat(list(rows.values())).sort().values, torch.arange(N))
    assert set(rows) == {"train", *(["val"] if shares[0] else []), *(["test"] if shares[1] or by == "fold" else [])}
    if by != "fold":
        assert len(rows.get("val", [])) == round(shares[0] * N)
        assert len(rows.get("test", [])) == round(shares[1] * N)


@pytest.mark.parametrize("by", ["stratified", "random"])
def test_draw_depends_on_its_seed_alone(by: str) -> None:
    assert torch.equal(draw(by=by)["test"], draw(by=by)["test"])
    assert not torch.equal(draw(by=by)["test"], draw(by=by, seed=1)["test"])


def test_stratified_keeps_shares() -> None:
    for name, rows in draw(by="stratified", val=0.2, test=0.3).items():
        share = {"train": 0.5, "val": 0.2, "test": 0.3}[name]
        counts = STRATA[rows].bincount().to(torch.float64)
        assert (counts - share * STRATA.bincount()).abs().max() <= 1.0


def test_ordered_cuts_without_shuffling() -> None:
    rows = draw(by="ordered", val=0.1, test=0.2)
    assert torch.equal(torch.cat([rows["train"], rows["val"], rows["test"]]), torch.arange(N))


@pytest.mark.parametrize("strata", [STRATA, None])
def test_folds_are_a_partition(strata: Tensor | None) -> None:
    tests = [draw(strata, by="fold", folds=4, fold=fold)["test"] for fold in range(4)]
    assert torch.equal(torch.cat(tests).sort().values, torch.arange(N))
    assert max(map(len, tests)) - min(map(len, tests)) <= 1
    if strata is not None:
        counts = torch.stack([strata[rows].bincount() for rows in tests])
        assert (counts.amax(0) - counts.amin(0)).max() <= 1


def test_brought_splits_are_kept_and_val_is_drawn() -> None:
    given = {"train": torch.arange(80), "test": torch.arange(80, N)}
    for by in ("file", "random", "stratified", "ordered"):
        rows = draw(given=given, by=by, val=0.1, test=0.4)
        assert torch.equal(rows["test"], given["test"])
        assert len(rows["val"]) == round(0.1 * N)
        assert torch.equal(torch.cat([rows["train"], rows["val"]]).sort().values, given["train"])


def test_brought_val_is_all_there_is() -> None:
    rows = draw(given={"train": torch.arange(80), "val": torch.arange(80, N)}, by="file", test=0.0)
    assert [len(rows[name]) for name in rows] == [80, N - 80]


def test_limit_takes_the_first_of_the_drawn_order() -> None:
    few, more = draw(limit=10)["train"], draw(limit=20)["train"]
    assert len(few) == 10
    assert set(few.tolist()) < set(more.tolist()) < set(draw()["train"].tolist())
    assert len(draw(limit=1000)["train"]) == len(draw()["train"])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"by": "fole"}, r"split.by: not a way to split[\s\S]*nearest: fold, file"),
        ({"val": -0.1}, "split.val: not a share"),
        ({"test": 1.0}, "split.test: not a share"),
        ({"val": float("nan")}, "split.val: not a share"),
        ({"val": 0.5, "test": 0.5}, "val and test leave no training rows"),
        ({"by": "fold", "folds": 1}, "too few folds"),
        ({"by": "fold", "fold": 5}, r"there is no such fold\n.*0 to 4"),
        ({"by": "fold", "fold": -1}, "there is no such fold"),
        ({"by": "fold", "folds": 24}, "class 2 has too few rows for 24 folds"),
        ({"limit": 0}, "training needs a row"),
        ({"by": "file"}, "brings no splits"),
        ({"val": 0.001}, r"split.val: the val split is empty"),
    ],
)
def test_bad_specs(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        draw(**spec)


def test_bad_data() -> None:
    with pytest.raises(UserError, match="only classes can be stratified"):
        draw(None, by="stratified")
    with pytest.raises(UserError, match="class 1 has too few rows for 3 splits"):
        split_rows(SplitSpec("stratified"), 20, strata=torch.tensor([0] * 18 + [1] * 2))
    with pytest.raises(UserError, match="fewer rows than folds"):
        split_rows(SplitSpec("fold"), 3)
    with pytest.raises(UserError, match="the train split is empty"):
        split_rows(SplitSpec(val=0.5, test=0.2), 4, given={"train": torch.arange(2), "test": torch.arange(2, 4)})
    assert "fold" in WAYS


@pytest.mark.parametrize("by", ["stratified", "random", "ordered", "fold"])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_so_many_rows_of_each_class(by: str, count: int) -> None:
    whole, few = draw(by=by), draw(by=by, per_class=count)
    assert {name: rows.tolist() for name, rows in few.items() if name != "train"} == {
        name: rows.tolist() for name, rows in whole.items() if name != "train"
    }
    assert set(few["train"].tolist()) <= set(whole["train"].tolist())
    sizes = STRATA[whole["train"]].bincount().clamp(max=count)
    assert torch.equal(STRATA[few["train"]].bincount(), sizes)
    # A larger number adds rows to those of a smaller one.
    assert set(few["train"].tolist()) <= set(draw(by=by, per_class=count + 3)["train"].tolist())


def test_rows_of_each_class_need_classes_and_a_number() -> None:
    with pytest.raises(UserError, match=r"split\.per_class: training needs a row"):
        SplitSpec(per_class=0)
    with pytest.raises(UserError, match="no classes to count by"):
        draw(None, per_class=3)
