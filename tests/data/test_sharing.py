"""Batches that several processes share: together they read what one would, each sample once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.common.strategies import own_part
from lightkit.data.transforms import GaussianNoise
from tests.data.pictures import Images, in_memory, make

WAYS: dict[str, dict[str, Any]] = {
    "blocks": {"dataset": in_memory},
    "augmented": {"dataset": in_memory, "augment": [GaussianNoise(0.5)]},
    "mixup": {"dataset": in_memory, "mixup": {"alpha": 0.5}},
    "samples": {"dataset": Images},
    "workers": {"dataset": Images, "num_workers": 1},
}


def batches(way: str, *, start: int = 0, rank: int = 0, ranks: int = 1, batch_size: int = 6) -> list[Any]:
    settings = {**WAYS[way], "dataset": WAYS[way]["dataset"]()}
    data = make(**settings, batch_size=batch_size, replica=rank, replicas=ranks)
    try:
        return list(data.train.epoch(2, start))
    finally:
        data.close()


@pytest.mark.parametrize(("ranks", "start"), [(2, 0), (3, 7), (2, 41)])
@pytest.mark.parametrize("way", WAYS)
def test_the_parts_make_up_the_batch(way: str, ranks: int, start: int) -> None:
    whole = batches(way, start=start)
    parts = [batches(way, start=start, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert {len(part) for part in parts} == {len(whole)}
    for index, batch in enumerate(whole):
        own = [own_part(len(batch[0]), rank, ranks)[1] for rank in range(ranks)]
        for which in (0, 1):
            pieces = [part[index][which][:count] for part, count in zip(parts, own, strict=True)]
            assert torch.equal(torch.cat(pieces), batch[which])


@pytest.mark.parametrize("way", ["blocks", "augmented", "samples"])
def test_who_has_no_sample_computes_the_whole_small_batch(way: str) -> None:
    last = batches(way, batch_size=20)[-1]
    idle = batches(way, rank=2, ranks=3, batch_size=20)[-1]
    assert len(last[0]) == 1
    assert torch.equal(idle[1], last[1])
