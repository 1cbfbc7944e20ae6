"""Points around a ring, networks that make and judge such points, and what says how well they are made.

Shapes: N points, Z numbers of noise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

MODES, RADIUS, SPREAD = 8, 1.0, 0.05
"""Normal distributions of this standard deviation, with their centres on a circle."""


class Ring(torch.utils.data.Dataset[Tensor]):
    """Points `(2,)` of a mixture of normal distributions; a sample is a point alone.

    Args:
        rows: How many.
        seed: Of the draw.
    """

    draws = False

    def __init__(self, rows: int = 6000, seed: int = 0) -> None:
        self.points = drawn(rows, seed)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, row: int) -> Tensor:
        return self.points[row]


def centres() -> Tensor:
    """Return the centres of the distributions, `(MODES, 2)`."""
    angles = torch.arange(MODES) * (2 * math.pi / MODES)
    return RADIUS * torch.stack([angles.cos(), angles.sin()], 1)


def drawn(rows: int, seed: int) -> Tensor:
    """Draw points of the mixture, `(N, 2)`."""
    random = torch.Generator().manual_seed(seed)
    which = torch.randint(MODES, (rows,), generator=random)
    return centres()[which] + SPREAD * torch.randn(rows, 2, generator=random)


def layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, outputs),
    )


class Networks(nn.Module):
    """A generator of points, and a discriminator that gives a score for each: above 0 for points it takes for real.

    Args:
        latent: Z, the numbers of noise that a point is made of.
        hidden: Width of the layers.
    """

    def __init__(self, latent: int = 8, hidden: int = 128) -> None:
        super().__init__()
        self.latent = latent
        self.generator, self.discriminator = layers(latent, hidden, 2), layers(2, hidden, 1)

    def forward(self, noise: Tensor | None = None, samples: Tensor | None = None) -> Tensor:
        """Return points `(N, 2)` for noise `(N, Z)`, or scores `(N, 1)` for samples `(N, 2)`."""
        found: Tensor = self.generator(noise) if samples is None else self.discriminator(samples)
        return found


def modes_covered(target: np.ndarray, preds: np.ndarray) -> float:
    """Count the distributions that got at least a quarter of their share of the points, within three deviations."""
    near, which = _nearest(preds)
    counts = np.bincount(which[near], minlength=MODES)
    return float((counts >= len(preds) / MODES / 4).sum())


def good_points(target: np.ndarray, preds: np.ndarray) -> float:
    """Return the share of points within three deviations of a centre."""
    return float(_nearest(preds)[0].mean())


def energy_distance(target: np.ndarray, preds: np.ndarray) -> float:
    """Return the energy distance of two samples (Székely and Rizzo 2013): 0 where their distributions are one."""
    a, b = torch.as_tensor(target[:1000]), torch.as_tensor(preds[:1000])
    between, inside = torch.cdist(a, b).mean(), torch.pdist(a).mean() + torch.pdist(b).mean()
    return float(2 * between - inside)


def _nearest(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances = torch.cdist(torch.as_tensor(points, dtype=torch.float32), centres()).numpy()
    return distances.min(1) <= 3 * SPREAD, distances.argmin(1)
