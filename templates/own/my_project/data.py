"""The data set: replace what makes the points by what reads yours."""

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Spirals(Dataset):
    """Points on the arms of a spiral; the class is the arm.

    Args:
        rows: Number of points.
        noise: How far points lie from their arm.
    """

    classes = ("first", "second", "third")
    draws = False  # no random numbers are drawn while samples are read

    def __init__(self, rows: int = 900, noise: float = 0.1) -> None:
        generator = torch.Generator().manual_seed(0)
        self.targets = torch.arange(rows) % len(self.classes)
        radius = torch.rand(rows, generator=generator)
        angle = 4 * radius + 2 * math.pi / len(self.classes) * self.targets
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
        self.points = points + noise * torch.randn(rows, 2, generator=generator)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.points[row], int(self.targets[row])
