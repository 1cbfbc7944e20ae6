"""Drawn pictures depend on their number alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.data import build_data
from lightkit.data.shapes import KINDS, Shapes


def test_same_bits_whatever_the_batch_and_with_a_cache() -> None:
    plain, cached = Shapes(16, 90, 0, 0, cache=False), Shapes(16, 90, 0, 0)
    rows = torch.randperm(90)
    whole, classes = plain.take(rows)
    for size in (1, 7, 89):
        for data in (plain, cached):
            pieces = [data.take(piece) for piece in rows.split(size)]
            assert torch.equal(torch.cat([x for x, _ in pieces]), whole)
            assert torch.equal(torch.cat([y for _, y in pieces]), classes)


@pytest.mark.parametrize("settings", [{"size": 9}, {"size": 48, "channels": 1}, {"classes": 3}, {"distractors": 0}])
def test_any_size(settings: dict[str, Any]) -> None:
    data = Shapes(train=50, val=5, test=6, **settings)
    x, y = data.take(torch.arange(61))
    assert x.shape == (61, *data.info.input_shape)
    assert 0 <= float(x.min()) < float(x.max()) <= 1
    assert x.std() > 0.1
    assert int(y.max()) < data.info.num_classes == len(data.info.class_names)


def test_splits_differ_and_do_not_depend_on_each_other() -> None:
    small, large = Shapes(12, 10, 10, 10), Shapes(12, 30, 10, 10)
    parts = {name: small.take(rows)[0] for name, rows in small.splits.items()}
    assert torch.equal(parts["test"], large.take(large.splits["test"])[0])
    assert torch.equal(parts["train"], large.take(large.splits["train"])[0][:10])
    assert len(torch.cat(list(parts.values())).flatten(1).unique(dim=0)) == 30
    assert not torch.equal(parts["train"], Shapes(12, 10, 10, 10, seed=1).take(torch.arange(10))[0])
    two = Shapes(12, 60, 10, 10, classes=2)
    data = build_data(dataset=two, split={"by": "file", "per_class": 4}, batch_size=4, seed=0)
    assert [loader.num_samples for loader in data.loaders().values()] == [8, 10, 10]


def test_classes_are_about_even_and_every_shape_is_inside_its_circle() -> None:
    _, y = Shapes(8, 4000, 0, 0, cache=False).take(torch.arange(4000))
    assert y.bincount(minlength=8).min() > 400
    turn = torch.linspace(0, 6.28, 200)
    for outline in KINDS.values():
        assert outline(1.03 * turn.cos(), 1.03 * turn.sin()).min() > 0
        u, v = torch.rand(2, 5000) * 2 - 1
        assert 0.1 < (outline(u, v) < 0).float().mean() < 0.6


def test_classes_by_name() -> None:
    data = Shapes(16, 60, 0, 0, classes=["ring", "bar"])
    assert data.info.class_names == ("ring", "bar")
    x, y = data.take(torch.arange(60))
    assert torch.equal(y, data.strata)
    assert torch.equal(y.unique(), torch.arange(2))
    # The first so many by name are the same pictures, and the same data.
    number, named = Shapes(16, 60, 0, 0, classes=3), Shapes(16, 60, 0, 0, classes=list(KINDS)[:3])
    assert torch.equal(number.take(torch.arange(60))[0], named.take(torch.arange(60))[0])
    assert number.info == named.info
    assert not torch.equal(x, number.take(torch.arange(60))[0])
