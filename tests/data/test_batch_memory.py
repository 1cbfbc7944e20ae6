"""Memory of batches is taken again once nothing refers to it, here and in worker processes, and never before."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.data import DataInfo, batch_memory, fetch
from lightkit.data.batch_memory import BatchMemory
from tests.data.pictures import make


@pytest.fixture(params=["main", "worker"])
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """Makes a batch of so many samples of one value; that of a worker process has come to the main one."""
    memory = BatchMemory()

    def made(value: float, count: int = 3) -> Tensor:
        with monkeypatch.context() as here:
            if request.param == "worker":
                here.setattr(batch_memory, "get_worker_info", lambda: object())
            x = memory.reserve(count, torch.empty(1, 5, 7))
            x[:] = value
            sent = memory.sent(x)
        if isinstance(sent, Tensor):
            return sent
        assert sent[0].is_shared()
        receive, facts = sent.__reduce__()
        received: Tensor = receive(*facts)
        return received

    return made


def test_memory_is_taken_again_once_nothing_refers_to_it(batch: Callable[..., Tensor]) -> None:
    first, second = batch(1), batch(2)
    places = {first.data_ptr(), second.data_ptr()}
    assert len(places) == 2
    part, copy = second[1, 2:], first.numpy()
    del first, second
    assert batch(3).data_ptr() not in places, "a part is held, and an array"
    assert (part.unique().tolist(), np.unique(copy).tolist()) == ([2], [1])
    del part, copy
    assert batch(4).data_ptr() in places


def test_as_many_batches_as_anybody_likes_are_held(batch: Callable[..., Tensor]) -> None:
    held = [batch(value) for value in range(11)]
    assert [x.unique().tolist() for x in held] == [[value] for value in range(11)]
    del held[2:]
    assert [batch(value).unique().tolist() for value in range(20, 24)] == [[20], [21], [22], [23]]
    assert [x.unique().tolist() for x in held] == [[0], [1]]


def test_other_sizes_have_room(batch: Callable[..., Tensor]) -> None:
    for count in (3, 9, 1, 4, 9):
        x = batch(count, count)
        assert (x.shape, x.unique().tolist(), x.data_ptr() % 64) == ((count, 5, 7), [count], 0)
        del x


def test_a_forked_process_gives_nothing_back(batch: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    x, here = batch(1), os.getpid()
    place = x.data_ptr()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: here + 1)
        del x
    assert batch(2).data_ptr() != place


class Levels:
    """Pictures whose pixels are their row."""

    info, draws = DataInfo("multiclass", (3, 40, 40), 3), False

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> Any:
        return torch.full((3, 40, 40), float(row)), row % 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_batches_that_are_held_stay_as_they_came(workers: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PIECE_BYTES", 2 * 3 * 40 * 40 * 4)
    data = make(Levels(), batch_size=5, num_workers=workers, persistent_workers=kept)
    try:
        held = [list(data.train.epoch(epoch)) for epoch in (0, 1)]  # all, as nobody should
        few = [x[2:].clone() for x, _ in data.train.epoch(1)]
    finally:
        data.close()
    for epoch, batches in enumerate(held):
        rows = data.train.order(epoch).split(5)
        for (x, y), own in zip(batches, rows, strict=True):
            assert torch.equal(x, own.float()[:, None, None, None].expand(-1, 3, 40, 40))
            assert torch.equal(y, own % 3)
    assert all(torch.equal(part, x[2:]) for part, (x, _) in zip(few, held[1], strict=True))


def test_batches_may_come_and_go_within_inference_mode(batch: Callable[..., Tensor]) -> None:
    held = batch(1.0)
    with torch.inference_mode():
        inside = batch(2.0)
        assert inside.eq(2.0).all()
        place = held.data_ptr()
        del held
        assert batch(3.0).data_ptr() == place, "its memory is free, though it went inside"
    del inside
    assert batch(4.0).eq(4.0).all()
