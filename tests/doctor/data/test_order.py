"""The order of rows: time is a fact, sorting a fault, and neither is told twice or in a circle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightkit.data import TensorData
from tests.doctor.data.planted import Examine, bad, labelled, only, table


def walk(rows: int = 800, features: int = 6) -> Tensor:
    """Numbers that wander from row to row, with some noise."""
    generator = torch.Generator().manual_seed(3)
    steps = torch.randn(rows, features, generator=generator).cumsum(0)
    return steps + 0.3 * torch.randn(rows, features, generator=generator)


def series(kind: str) -> TensorData:
    """A series: of wandering features, with a trend in its target, with dates, or with states that last."""
    x = walk()
    noise = torch.randn(800, generator=torch.Generator().manual_seed(4))
    trend = torch.arange(800) / 200
    if kind == "trend":
        return TensorData(torch.randn(800, 3, generator=torch.Generator().manual_seed(5)), trend + 0.3 * noise)
    if kind == "dates":
        days = 1.6e9 + 86400.0 * torch.arange(800) + 3600 * noise.abs()
        return TensorData(torch.stack([days, noise, noise**2], 1), trend, feature_names=["date", "a", "b"])
    if kind == "states":
        state = (torch.arange(800) // 37) % 3
        return TensorData(x, torch.where(torch.arange(800) < 560, state % 2, state))
    return TensorData(x, x[:, 0] + x[:, 1] + noise)


@pytest.mark.parametrize("kind", ["wandering", "trend", "dates", "states"])
def test_a_series_that_is_cut_in_order_may_drift(kind: str, examine: Examine) -> None:
    found = examine(series(kind), "order", split={"by": "ordered"})
    assert not bad(found)
    assert "follow each other in time" in only(found, "row order").measured
    assert not any("random" in each.fix or "stratified" in each.fix for each in found)


def test_a_series_that_is_drawn_at_random_is_told_once(examine: Examine) -> None:
    found = examine(series("wandering"), "order", "overlap", "labels", split={"by": "random"})
    (told,) = bad(found)
    assert (told.check, told.key) == ("groups", "data.split.by")
    assert "ordered" in told.fix


@pytest.mark.parametrize("by", ["ordered", "random"])
def test_a_trend_is_a_feature_of_a_series_that_is_cut_in_order(by: str, examine: Examine) -> None:
    hour = torch.arange(800) * 6.28 / 24
    load = 0.002 * torch.arange(800) + hour.sin() + 0.3 * torch.randn(800, generator=torch.Generator().manual_seed(6))
    x = torch.stack([hour.sin(), hour.cos(), torch.arange(800) / 800, load.roll(24)], 1)
    told = [finding.status for finding in examine(TensorData(x[24:], load[24:]), "leaks", split={"by": by})]
    assert told == (["note"] if by == "ordered" else ["warning"])


@pytest.mark.parametrize("kind", ["targets", "classes", "a feature"])
def test_sorted_rows_are_no_series(kind: str, examine: Examine) -> None:
    base = table(600)
    y: Tensor = base.y
    x = base.x
    if kind == "classes":
        order = y.argsort()
    elif kind == "a feature":
        y = x[:, 0] + 0.3 * x[:, 1]
        order = x[:, 0].argsort()
    else:
        y = x[:, 0] + x[:, 1]
        order = y.argsort()
    found = examine(TensorData(x[order], y[order]), "order", split={"by": "ordered"})
    assert [each.check for each in bad(found)] == ["row order"]
    assert "random" in bad(found)[0].fix


def test_other_targets_without_an_order_are_a_drift(examine: Examine) -> None:
    y = torch.cat([torch.randint(2, (600,), generator=torch.Generator().manual_seed(0)), torch.ones(200).long()])
    splits = {"train": list(range(600)), "val": list(range(600, 800))}
    data = labelled(y)
    data.splits = splits  # type: ignore[attr-defined]
    found = examine(data, "order", split={"by": "file"})
    assert [each.check for each in bad(found)] == ["target drift"]


@pytest.mark.parametrize(("rows", "status"), [(1, "warning"), (3, "warning"), (12, "note"), (60, None)])
def test_few_rows_to_judge_by_are_named(rows: int, status: str | None, examine: Examine) -> None:
    data = table(400)
    data.splits = {"train": list(range(300)), "val": list(range(300, 300 + rows))}  # type: ignore[attr-defined]
    found = [each for each in examine(data, "order", split={"by": "file"}) if each.check == "size of splits"]
    assert [each.status for each in found] == ([status] if status else [])
    assert all(each.key == "data.split.val" for each in found)
