"""Transforms of one sample, as torchvision's, made transforms of a batch."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.placed import changed_by, marked, unmarked
from lightkit.data.sources import kept_generators, seed_generators


class SampleWise:
    """Base of transforms that look at each sample by itself: they may be given a batch in pieces."""


class PerSample(SampleWise):
    """Applies transforms of one sample, one after the other, to each of a batch.

    The generators of Python, NumPy and PyTorch are seeded for each transform of a sample by the sample's place in the
    epoch, and put back afterwards: a sample looks the same whatever the batch size, the number of workers and where an
    epoch was entered.

    Args:
        transform: Takes the input of one sample, a tensor `(...)`, and returns a tensor.
        key: Configuration key of the transform, for errors.
    """

    def __init__(self, transform: Callable[[Tensor], Tensor], key: str) -> None:
        self.steps: tuple[tuple[Callable[[Tensor], Tensor], str], ...] = ((transform, key),)

    def then(self, other: PerSample) -> PerSample:
        """Chain this transform and another, without making a batch in between."""
        chain = copy(self)
        chain.steps = (*self.steps, *other.steps)
        return chain

    def __call__(self, x: Any, random: SampleRandom, y: Any = None) -> Any:
        """Return a changed copy of inputs `(B, ...)`; with masks or boxes that lie in them, inputs and these.

        Each transform then takes the pair of a sample as the transforms of `torchvision.transforms.v2` do, which move
        both: a picture with a mask, or with a mapping of boxes, labels and the like. What is left of a box may be less
        than a pixel wide or high; such boxes are dropped.

        Args:
            x: Inputs; pictures may be a list.
            random: Tells the place of each sample in the epoch.
            y: Masks `(B, H, W)`, or a list of mappings; None leaves targets alone.

        Raises:
            UserError: The transform raises, or gives no tensors of one shape.
        """
        shapes: list[set[tuple[int, ...]]] = [set() for _ in self.steps]
        changed = []
        with kept_generators():
            for item, at in zip(x if y is None else map(marked, x, y), random.positions.tolist()):
                for (transform, key), seen in zip(self.steps, shapes):
                    seed_generators(mix(random.key, key, at))
                    item = changed_by(transform, item, key)
                    seen.add(tuple(item.shape if y is None else item[0].shape))
                changed.append(item)
        for (_, key), seen in zip(self.steps, shapes):
            if len(seen) > 1 and isinstance(x, Tensor):
                found = " and ".join(map(str, sorted(seen)[:2]))
                what = "the samples of a batch come out with different shapes"
                raise UserError(what, key=key, expected="one shape for all", received=found)
        if y is None:
            return torch.stack(changed)
        parts = (list(part) for part in zip(*starmap(unmarked, changed)))
        return tuple(torch.stack(part) if isinstance(x, Tensor) else part for part in parts)
