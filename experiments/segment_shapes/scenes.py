"""Pictures with several shapes, and where these are: a mask, or boxes.

Shapes in this file: B samples, S pixels a side, K classes with the background.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import masks_to_boxes

from lightkit.common.randomness import SampleRandom
from lightkit.data.collates import listed
from lightkit.data.shapes import KINDS, Shapes
from lightkit.data.tensors import DataInfo, fingerprint

_LEAST = 12
"""Pixels of which a shape has to be seen; one that others hide leaves no box."""


class Masks(Shapes):
    """Pictures `(3, S, S)` and the class of each pixel `(S, S)`: 0 is the background.

    Args:
        size: Pixels a side.
        train: Training pictures.
        val: Validation pictures.
        test: Test pictures.
        classes: The first so many of `lightkit.data.shapes.KINDS`.
        objects: Shapes of a picture, at most; the later ones lie over the earlier ones.
        seed: Seed of the pictures.
    """

    task = "segmentation"

    def __init__(
        self, size: int, train: int, val: int, test: int, *, classes: int = 4, objects: int = 3, seed: int = 0
    ) -> None:
        super().__init__(size, train, val, test, classes=classes, cache=False, seed=seed)
        self.objects = objects
        names = ("background", *list(KINDS)[:classes])
        mark = fingerprint([self.info.fingerprint, objects, type(self).__name__])
        shape = self.info.input_shape if self.task == "segmentation" else ()
        self.info = DataInfo(self.task, shape, len(names), names, fingerprint=mark)
        self.images, self.labels, self.owners = self._scenes(torch.arange(len(self)))

    @property
    def strata(self) -> None:
        """No classes of whole pictures."""

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return pictures `(B, 3, S, S)` in [0, 1] and masks `(B, S, S)` of `rows`."""
        return self.images[rows] / 255, self.labels[rows]

    def _scenes(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw pictures, the classes of their pixels, and which shape each pixel belongs to (0: none)."""
        count = 1 + self._random(rows, "count").integers(0, self.objects)[:, 0]
        background = self._random(rows, "background").uniform(3)
        canvas = background[:, :, None, None].expand(-1, -1, self.size, self.size)
        labels = torch.zeros(len(rows), self.size, self.size, dtype=torch.int64)
        owners = labels.clone()
        random = self._random(rows, "distractors")
        for number in range(self.distractors):
            canvas = self._distract(canvas, random, line=number % 2 == 0)
        for number in range(1, self.objects + 1):
            random = self._random(rows, f"shape {number}")
            kind = random.integers(0, len(self.kinds))[:, 0]
            colour = (background + random.uniform(3, 0.35, 0.65)) % 1.0
            self._classes = lambda _rows, kind=kind: kind  # type: ignore[method-assign]
            cover = self._shape(rows, random) * (number <= count)[:, None, None]
            canvas = canvas * (1 - cover[:, None]) + colour[:, :, None, None] * cover[:, None]
            inside = cover > 0.5
            labels = torch.where(inside, kind[:, None, None] + 1, labels)
            owners = torch.where(inside, number, owners)
        noise = SampleRandom(self.seed + 1, self._numbers[rows]).normal(3 * self.size**2).reshape(canvas.shape)
        return ((canvas + self.noise * noise / 2).clamp(0, 1) * 255).to(torch.uint8), labels, owners


class Boxes(Masks):
    """Pictures and the boxes of their shapes: samples are read one by one, and batches are lists."""

    task = "detection"
    draws = False
    take = None  # type: ignore[assignment]
    collate_fn = staticmethod(listed)

    def __getitem__(self, row: int) -> tuple[Tensor, dict[str, Tensor]]:
        owners = self.owners[row]
        masks = torch.stack([owners == number for number in range(1, self.objects + 1)])
        masks = masks[masks.sum((1, 2)) >= _LEAST]
        boxes = masks_to_boxes(masks) + torch.tensor([0.0, 0.0, 1.0, 1.0])  # the last pixel is inside
        labels = torch.stack([self.labels[row][mask][0] for mask in masks]) if len(masks) else torch.zeros(0).long()
        return self.images[row] / 255, {"boxes": boxes, "labels": labels}
