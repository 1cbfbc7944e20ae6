"""Splits are exact partitions, repeatable, and as large as their shares say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor

from lightkit.data.splits import SplitSpec, split_rows
from tests.refused import refused

STRATA = torch.tensor([0] * 50 + [1] * 30 + [2] * 23)
N = len(STRATA)


def draw(strata: Tensor | None = STRATA, given: dict[str, Tensor] | None = None, **spec: Any) -> dict[str, Tensor]:
    return split_rows(SplitSpec(**spec), N, strata=strata, given=given)


def whole(*parts: Tensor) -> Tensor:
    return torch.cat(parts).sort().values


@pytest.mark.parametrize("by", ["stratified", "random", "ordered", "fold"])
@pytest.mark.parametrize("shares", [(0.1, 0.2), (0.0, 0.2), (0.15, 0.0), (0.0, 0.0)])
def test_each_row_is_in_one_split(by: str, shares: tuple[float, float]) -> None:
    rows = draw(by=by, val=shares[0], test=shares[1])
    assert torch.equal(whole(*rows.values()), torch.arange(N))
    assert set(rows) == {"train", *(["val"] if shares[0] else []), *(["test"] if shares[1] or by == "fold" else [])}
    sizes = [len(rows.get(name, [])) for name in ("val", "test")]
    assert by == "fold" or sizes == [round(share * N) for share in shares]
    if by == "ordered":
        assert torch.equal(torch.cat([*rows.values()]), torch.arange(N))


@pytest.mark.parametrize(
    ("split", "spec", "first"),
    [
        ("test", {"by": "random"}, [1, 3, 10, 13]),
        ("test", {"by": "stratified"}, [11, 19, 23, 24]),
        ("test", {"by": "fold", "fold": 1}, [0, 2, 4, 9]),
        ("train", {"by": "random", "limit": 4}, [12, 64, 80, 95]),
    ],
)
def test_the_draw_of_a_seed_stays_what_it_was(split: str, spec: dict[str, Any], first: list[int]) -> None:
    assert draw(seed=3, **spec)[split][:4].tolist() == first != draw(seed=4, **spec)[split][:4].tolist()


def test_time_goes_from_train_to_test_and_no_moment_is_torn() -> None:
    times = torch.randperm(N, generator=torch.Generator().manual_seed(0)) // 5
    rows = split_rows(SplitSpec(by="time"), N, groups=times)
    assert torch.equal(whole(*rows.values()), torch.arange(N))
    assert times[rows["train"]].max() < times[rows["val"]].min() <= times[rows["val"]].max() < times[rows["test"]].min()
    assert [abs(len(rows[name]) - share * N) < 5 for name, share in {"val": 0.1, "test": 0.2}.items()] == [True, True]
    given = {"test": torch.arange(20)}  # which stays what it is; the newest of the others are for validation
    rows = split_rows(SplitSpec(by="time"), N, groups=times, given=given)
    assert torch.equal(rows["test"], given["test"])
    assert times[rows["train"]].max() < times[rows["val"]].min()
    refused(lambda: split_rows(SplitSpec(by="time"), N, groups=times * 0), "split.time: there are fewer times (1)")


def test_stratified_groups_keep_class_shares_as_those_of_scikit_learn_do() -> None:
    draws = torch.Generator().manual_seed(1)
    groups = torch.randint(40, (400,), generator=draws)
    strata = (torch.rand(40, generator=draws)[groups] + torch.rand(400, generator=draws) > 1.2).long()
    folds = SplitSpec(by="fold", val=0)
    ours = [split_rows(replace(folds, fold=k), 400, strata=strata, groups=groups)["test"] for k in range(5)]
    theirs = [test for _, test in StratifiedGroupKFold(5).split(groups, strata, groups)]

    def off(parts: list[Any]) -> float:
        return max(float((strata[part].bincount() / strata.bincount() - 0.2).abs().max()) for part in parts)

    assert off(ours) <= off(theirs)


def test_stratified_keeps_shares() -> None:
    for name, rows in draw(by="stratified", val=0.2, test=0.3).items():
        share = {"train": 0.5, "val": 0.2, "test": 0.3}[name]
        counts = STRATA[rows].bincount().to(torch.float64)
        assert (counts - share * STRATA.bincount()).abs().max() <= 1.0


@pytest.mark.parametrize("strata", [STRATA, None])
def test_folds_are_a_partition(strata: Tensor | None) -> None:
    tests = [draw(strata, by="fold", folds=4, fold=fold)["test"] for fold in range(4)]
    assert torch.equal(whole(*tests), torch.arange(N))
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
        assert torch.equal(whole(rows["train"], rows["val"]), given["train"])
    rows = draw(given={"train": torch.arange(80), "val": torch.arange(80, N)}, by="file", test=0.0)
    assert {name: len(own) for name, own in rows.items()} == {"train": 80, "val": N - 80}


def test_limit_takes_the_first_of_the_drawn_order() -> None:
    few, more = draw(limit=10)["train"], draw(limit=20)["train"]
    assert len(few) == 10
    assert set(few.tolist()) < set(more.tolist()) < set(draw()["train"].tolist())
    assert len(draw(limit=1000)["train"]) == len(draw()["train"])


@pytest.mark.parametrize("by", ["stratified", "random", "ordered", "fold"])
def test_a_seed_draws_the_rows_of_a_limit(by: str) -> None:
    every, seen = draw(by=by), set[tuple[int, ...]]()
    for seed in range(3):
        few, more = (draw(by=by, limit=limit, limit_seed=seed) for limit in (12, 24))
        seen.add(tuple(few["train"].tolist()))
        assert (len(few["train"]), len(more["train"])) == (12, 24)
        assert set(few["train"].tolist()) < set(more["train"].tolist()) < set(every["train"].tolist())
        assert all(torch.equal(few[name], every[name]) for name in ("val", "test"))
        if by in ("stratified", "fold"):
            shares = [torch.bincount(STRATA[rows["train"]]) / len(rows["train"]) for rows in (few, every)]
            assert (shares[0] - shares[1]).abs().max() < 1 / 12
    assert len(seen) == 3
    assert torch.equal(draw(by=by, limit=1000, limit_seed=0)["train"], every["train"])


@pytest.mark.parametrize("by", ["stratified", "random", "ordered", "fold", "file"])
def test_limits_of_evaluation_take_any_rows_and_leave_the_other_splits_alone(by: str) -> None:
    given = {"train": torch.arange(60), "val": torch.arange(60, 80), "test": torch.arange(80, N)}
    every, few = draw(given=given, by=by), draw(given=given, by=by, val_limit=4, test_limit=15)
    assert torch.equal(few["train"], every["train"])
    assert (len(few["val"]), len(few["test"])) == (4, 15)
    for name in ("val", "test"):
        assert set(few[name].tolist()) < set(every[name].tolist())
        assert not torch.equal(few[name], every[name][: len(few[name])]), "rows may lie in the order of their classes"
    assert torch.equal(draw(given=given, by=by, val_limit=500)["val"], every["val"])


@pytest.mark.parametrize("by", ["stratified", "random", "ordered", "fold"])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_so_many_rows_of_each_class(by: str, count: int) -> None:
    every, few = draw(by=by), draw(by=by, per_class=count)
    assert all(torch.equal(few[name], every[name]) for name in ("val", "test"))
    assert set(few["train"].tolist()) <= set(every["train"].tolist())
    assert torch.equal(STRATA[few["train"]].bincount(), STRATA[every["train"]].bincount().clamp(max=count))
    # A larger number adds rows to those of a smaller one.
    assert set(few["train"].tolist()) <= set(draw(by=by, per_class=count + 3)["train"].tolist())


def test_folds_by_time_are_those_of_scikit_learn() -> None:
    from sklearn.model_selection import TimeSeriesSplit

    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    times = order.argsort()  # the row at place k in time is order[k]
    for folds in (2, 5, 7):
        for fold, (train, test) in enumerate(TimeSeriesSplit(folds).split(order)):
            spec = SplitSpec(by="time_fold", val=0, folds=folds, fold=fold)
            rows = split_rows(spec, N, groups=times, given={"test": torch.arange(3)})
            assert torch.equal(rows["train"], order[train].sort().values)
            assert torch.equal(rows["test"], order[test].sort().values)
            own = split_rows(replace(spec, val=0.2), N, groups=times)
            assert torch.equal(own["test"], rows["test"])
            assert (
                times[own["train"]].max()
                < times[own["val"]].min()
                <= times[own["val"]].max()
                < times[own["test"]].min()
            )
            assert len(own["val"]) == round(0.2 * len(train))


def test_ties_in_time_stay_together_in_all_folds_by_time() -> None:
    times = torch.arange(N) // 4
    tests = list[Tensor]()
    for fold in range(5):
        rows = split_rows(SplitSpec(by="time_fold", folds=5, fold=fold), N, groups=times)
        assert (
            times[rows["train"]].max()
            < times[rows["val"]].min()
            <= times[rows["val"]].max()
            < times[rows["test"]].min()
        )
        assert torch.equal(torch.isin(times, times[rows["test"]]).nonzero().reshape(-1), rows["test"])
        tests.append(rows["test"])
    assert len(torch.cat(tests).unique()) == sum(map(len, tests))
    few = SplitSpec(by="time_fold", folds=5)
    refused(lambda: split_rows(few, N, groups=torch.arange(N) // 30), "too few different times for so many folds")
    refused(lambda: SplitSpec(by="time_fold", folds=3, fold=3), "split.fold")
