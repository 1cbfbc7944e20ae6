"""Pairs of digit images of which only the sum is known.

Shapes: B samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightkit.common.randomness import mix
from lightkit.data.splits import SplitSpec, split_rows
from lightkit.data.tables import digits
from lightkit.data.tensors import DataInfo, fingerprint


class DigitPairs:
    """Random pairs of digit images `left` and `right` with the `sum` of their digits.

    The images are split first, so an image of a test pair is in no training pair.

    Args:
        train: Training pairs.
        val: Validation pairs.
        test: Test pairs.
        seed: Seed of the images' split and of the pairs.
    """

    exact = False
    strata = None

    def __init__(self, train: int, val: int, test: int, seed: int = 0) -> None:
        self.images = digits()
        rows = split_rows(SplitSpec("stratified", seed=seed), len(self.images), strata=self.images.y)
        counts = {"train": train, "val": val, "test": test}
        self.pairs = torch.cat([self._draw(rows[name], count, mix(seed, name)) for name, count in counts.items()])
        numbers = torch.arange(len(self.pairs)).split(list(counts.values()))
        self.splits = dict(zip(counts, numbers, strict=True))
        mark = fingerprint([self.images.info.fingerprint, self.pairs])
        # The task is nobody's but ours; the sizes are those of one image, which is what the network sees.
        self.info = DataInfo("custom", self.images.info.input_shape, 10, fingerprint=mark)

    @staticmethod
    def _draw(rows: Tensor, count: int, key: int) -> Tensor:
        chosen = torch.randint(len(rows), (count, 2), generator=torch.Generator().manual_seed(key))
        return rows[chosen]

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, rows: Tensor) -> dict[str, Tensor]:
        """Images `left` and `right` `(B, 1, 8, 8)` and the `sum` of their digits `(B,)` of pairs `rows`."""
        left, left_digit = self.images.take(self.pairs[rows, 0])
        right, right_digit = self.images.take(self.pairs[rows, 1])
        return {"left": left, "right": right, "sum": left_digit + right_digit}
