"""Histograms of oriented gradients: what classics see of a picture.

Shapes: N pictures, C channels, H rows, W columns.
"""

from __future__ import annotations

import numpy as np


def oriented_gradients(pictures: np.ndarray, *, cell: int = 8, bins: int = 9) -> np.ndarray:
    """How strongly each direction of edges occurs in each cell of pictures (Dalal and Triggs 2005).

    Args:
        pictures: `(N, C, H, W)`; of the channels the one that changes most at a pixel counts.
        cell: Side of a cell in pixels.
        bins: Directions between 0 and 180 degrees.

    Returns:
        Features `(N, F)`; neighbouring cells are scaled together, two by two.
    """
    rows, columns = np.gradient(pictures, axis=(2, 3))
    strongest = np.hypot(rows, columns).argmax(axis=1)[:, None]
    across, down = (np.take_along_axis(each, strongest, axis=1)[:, 0] for each in (columns, rows))
    angle = np.arctan2(down, across) % np.pi / np.pi * bins
    cells = _in_cells(np.hypot(across, down), angle, cell, bins)
    around = [cells[:, i : cells.shape[1] - 1 + i, j : cells.shape[2] - 1 + j] for i in (0, 1) for j in (0, 1)]
    blocks = np.concatenate(around, axis=-1)
    blocks /= np.linalg.norm(blocks, axis=-1, keepdims=True) + 0.1
    return blocks.reshape(len(blocks), -1).astype(np.float32)


def _in_cells(strength: np.ndarray, angle: np.ndarray, cell: int, bins: int) -> np.ndarray:
    """Sums of strengths by cell and direction `(N, rows, columns, bins)`; each is shared by the two nearest."""
    count, height, width = strength.shape
    lower = np.floor(angle).astype(np.int64)
    upper_share = angle - lower
    found = np.zeros((count, height // cell, width // cell, bins))
    for direction in range(bins):
        share = (lower % bins == direction) * (1 - upper_share) + ((lower + 1) % bins == direction) * upper_share
        parts = (share * strength)[:, : height // cell * cell, : width // cell * cell]
        found[..., direction] = parts.reshape(count, height // cell, cell, width // cell, cell).sum(axis=(2, 4))
    return found
