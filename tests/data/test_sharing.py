"""Batches that several processes share: together they read what one would, each sample once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightkit.common.strategies import own_part
from lightkit.data import DataInfo, TensorData, build_data
from lightkit.data.transforms import GaussianNoise


class Sampled(torch.utils.data.Dataset):
    """Samples that are read one by one and draw."""

    info = DataInfo("regression", (3,), 1)

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)) + torch.rand(3) * 0.5, torch.tensor(float(index))


def table() -> TensorData:
    x = torch.arange(23.0)[:, None].repeat(1, 3)
    return TensorData(x, torch.arange(23.0), DataInfo("regression", (3,), 1))


WAYS = {
    "blocks": {"dataset": table},
    "augmented": {"dataset": table, "augment": [GaussianNoise(0.5)]},
    "mixup": {"dataset": table, "mixup": {"alpha": 0.5}},
    "samples": {"dataset": Sampled},
    "workers": {"dataset": Sampled, "num_workers": 1},
}


def batches(way: str, *, start: int = 0, rank: int = 0, ranks: int = 1, batch_size: int = 6) -> list[Any]:
    options = WAYS[way]
    settings: Any = {**options, "dataset": options["dataset"]()}
    data = build_data(
        split={"by": "ordered", "val": 0, "test": 0},
        batch_size=batch_size,
        seed=3,
        replica=rank,
        replicas=ranks,
        **settings,
    )
    try:
        return list(data.train.epoch(2, start))
    finally:
        data.close()


@pytest.mark.parametrize("start", [0, 7, 23])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_the_parts_make_up_the_batch(way: str, ranks: int, start: int) -> None:
    whole = batches(way, start=start)
    parts = [batches(way, start=start, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert {len(part) for part in parts} == {len(whole)}
    for index, (x, y) in enumerate(whole):
        own = [own_part(len(x), rank, ranks)[1] for rank in range(ranks)]
        found = [parts[rank][index] for rank in range(ranks)]
        assert torch.equal(torch.cat([x[:count] for (x, _), count in zip(found, own)]), x)
        assert torch.equal(torch.cat([y[:count] for (_, y), count in zip(found, own)]), y)


@pytest.mark.parametrize("way", ["blocks", "augmented", "samples"])
def test_who_has_no_sample_computes_the_whole_small_batch(way: str) -> None:
    last = batches(way, batch_size=11)[-1]
    idle = batches(way, rank=2, ranks=3, batch_size=11)[-1]
    assert len(last[0]) == 1
    assert torch.equal(idle[1], last[1])
