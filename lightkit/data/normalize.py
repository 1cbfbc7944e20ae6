"""Scaling of inputs, fitted on training rows only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError

KINDS = ("none", "standard", "minmax", "image")


class Normalizer:
    """Inputs minus `shift`, divided by `scale`.

    Args:
        shift: What becomes 0, broadcastable to one input.
        scale: What becomes 1; never 0.
    """

    def __init__(self, shift: Tensor, scale: Tensor) -> None:
        self.shift, self.scale = shift.to(torch.float32), scale.to(torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        """Return a scaled copy of inputs `(B, ...)`."""
        return (x - self.shift.to(x.device)).div_(self.scale.to(x.device))

    def spare(self, places: Sequence[int]) -> None:
        """Leave some features as they are."""
        self.shift[..., [*places]], self.scale[..., [*places]] = 0.0, 1.0

    def suited(self, shape: Sequence[int]) -> Normalizer:
        """Return this scaling if it suits inputs of a shape.

        Raises:
            UserError: It is for inputs of another.
        """
        own = torch.broadcast_shapes(self.shift.shape, self.scale.shape)
        sizes = zip(reversed(own), reversed(tuple(shape)))
        if len(own) > len(shape) or any(size not in (1, wanted) for size, wanted in sizes):
            what = "this scaling is for inputs of another shape"
            raise UserError(what, argument="normalize", expected=str(tuple(own)), received=tuple(shape))
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Return both tensors, for a checkpoint or an exported model."""
        return {"shift": self.shift, "scale": self.scale}


def fit(kind: str, batches: Iterable[Tensor]) -> Normalizer | None:
    """Fit a scaling to inputs that come in pieces `(B, ...)`; None for `none`.

    Constant features are shifted and not scaled.

    Args:
        kind: `standard` (mean 0, deviation 1 per feature), `minmax` (0 to 1 per feature), `image` (`standard` per
            channel).
        batches: The training inputs.

    Raises:
        UserError: `kind` is unknown, the inputs are not numbers to scale, or not images for `image`.
    """
    if kind not in KINDS:
        raise UserError("not a way to scale inputs", argument="normalize", received=kind, choices=KINDS)
    if kind == "none":
        return None
    return _fit_range(batches) if kind == "minmax" else _fit_moments(batches, per_channel=kind == "image")


def _fit_moments(batches: Iterable[Tensor], *, per_channel: bool) -> Normalizer:
    """Compute mean and deviation by Chan's update of two moments, which is exact also where the mean is large."""
    count, mean, square = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        rows = _as_rows(batch, per_channel=per_channel)
        new, n = rows.mean(0), len(rows)
        delta, total = new - mean, count + n
        square = square + (rows - new).square().sum(0) + delta.square() * (count * n / total)
        mean, count = mean + delta * (n / total), total
    deviation = (square / max(count, 1)).sqrt()
    # Below the rounding of the data itself a deviation is noise: such a column is constant.
    constant = deviation <= mean.abs() * 1e-7
    scale = torch.where(constant, torch.ones_like(deviation), deviation)
    return Normalizer(mean[:, None, None], scale[:, None, None]) if per_channel else Normalizer(mean, scale)


def _fit_range(batches: Iterable[Tensor]) -> Normalizer:
    """Find the smallest and the largest value of each feature."""
    low, high = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    for batch in batches:
        rows = _as_rows(batch, per_channel=False)
        low, high = torch.minimum(low, rows.amin(0)), torch.maximum(high, rows.amax(0))
    width = high - low
    return Normalizer(low, torch.where(width > 0, width, torch.ones_like(width)))


def _as_rows(batch: Tensor, *, per_channel: bool) -> Tensor:
    """Return `(rows, features)` in float64; for `per_channel` every pixel is a row and every channel a feature."""
    if not batch.is_floating_point():
        what = "these inputs are not numbers to scale"
        raise UserError(what, argument="normalize", expected="none", received=str(batch.dtype))
    if not per_channel:
        return batch.to(torch.float64)
    if batch.dim() != 4:
        expected, fix = "(channels, height, width)", "data.normalize=standard"
        facts: dict[str, Any] = {"expected": expected, "received": tuple(batch.shape[1:]), "fix": fix}
        raise UserError("these inputs are not images", argument="normalize", **facts)
    return batch.to(torch.float64).transpose(0, 1).flatten(1).T
