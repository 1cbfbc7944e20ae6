"""Small data sets to make loaders of."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.data import Data, Loader, TensorData, build_data
from lightkit.data.shapes import Shapes

ROWS = 41


WHOLE = {"by": "ordered", "val": 0.0, "test": 0.0}


class Images:
    """Map-style samples that draw from all three global generators."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows
        self.targets = [row % 3 for row in range(rows)]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        drawn = random.random() + np.random.rand() + float(torch.rand(()))
        return torch.full((1, 4, 4), float(row)) + drawn / 100, self.targets[row]


class Silent(Images):
    draws = False

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.full((1, 4, 4), float(row)), self.targets[row]


def in_memory() -> TensorData:
    x = torch.arange(ROWS, dtype=torch.float32)[:, None, None, None].expand(-1, 1, 4, 4).clone()
    return TensorData(x, torch.arange(ROWS) % 3)


DATA: dict[str, Any] = {"memory": in_memory, "samples": Images, "drawn": lambda: Shapes(8, ROWS, 0, 0, cache=False)}


def make(dataset: Any, **settings: Any) -> Data:
    return build_data(**{"dataset": dataset, "split": WHOLE, "batch_size": 8, "seed": 3, **settings})


def joined(loader: Loader, epoch: int, start: int = 0) -> tuple[Tensor, Tensor]:
    pieces = list(loader.epoch(epoch, start))
    return torch.cat([x for x, _ in pieces]), torch.cat([y for _, y in pieces])


def same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
