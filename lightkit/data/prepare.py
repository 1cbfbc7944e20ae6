"""What happens to a batch between the data set and the model: scaling, augmentation, mixup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.info import DataInfo
from lightkit.data.normalize import Normalizer


class Transform(Protocol):
    """A random change of a whole batch; sample `i` may only use the numbers of its own stream in `random`."""

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a changed copy of inputs `(B, ...)`."""
        ...


class SampleWise:
    """Base of transforms that look at each sample by itself: they may be given a batch in pieces."""


@dataclass(frozen=True)
class Prepare:
    """Scales the inputs of a batch, then applies the transforms in order.

    Args:
        seed: Seed of the run.
        normalizer: Scaling; None where the data set is scaled already.
        augment: Transforms of training inputs; they see scaled inputs.
    """

    seed: int = 0
    normalizer: Normalizer | None = None
    augment: Sequence[Transform] = ()

    @property
    def idle(self) -> bool:
        """Whether batches pass unchanged."""
        return self.normalizer is None and not self.augment

    @property
    def sample_wise(self) -> bool:
        """Whether it makes no difference to a sample which others are given along with it."""
        return all(isinstance(transform, SampleWise) for transform in self.augment)

    def __call__(self, batch: Any, *, epoch: int, first: int) -> Any:
        """Prepare a batch.

        Args:
            batch: Samples; only pairs (input, target) are touched.
            epoch: Number of the epoch.
            first: Position of the batch's first sample in the epoch.
        """
        if self.idle or not isinstance(batch, (tuple, list)) or len(batch) != 2:
            return batch
        x, y = batch
        if self.normalizer is not None:
            x = self.normalizer(x)
        if self.augment:
            random = SampleRandom(mix(self.seed, "sample", epoch), torch.arange(first, first + len(x)))
            for transform in self.augment:
                x = transform(x, random)
        return x, y


class Mixup:
    """Mixes every sample of a batch with another one, inputs and targets alike.

    Zhang et al. 2018, https://arxiv.org/abs/1710.09412. Classes become shares `(B, C)`, in unmixed batches too.

    Args:
        alpha: Parameter of Beta(alpha, alpha), above 0.
        probability: Share of batches that are mixed.
        seed: Seed of the run.
        info: The data; classes are needed for their number.

    Raises:
        UserError: A parameter is out of range, or targets cannot be mixed.
    """

    def __init__(self, alpha: float, probability: float = 1.0, *, seed: int, info: DataInfo) -> None:
        if not alpha > 0:
            raise UserError(
                "not a parameter of Beta(alpha, alpha)",
                argument="mixup.alpha",
                expected="above 0, or null",
                received=alpha,
            )
        if not 0 <= probability <= 1:
            raise UserError(
                "not a share of the batches", argument="mixup.probability", expected="0 to 1", received=probability
            )
        if info.task in ("language_modeling", "custom"):
            raise UserError(
                f"{info.task} targets cannot be mixed",
                argument="mixup.alpha",
                received=alpha,
                fix="data.mixup.alpha=null",
            )
        self.alpha, self.probability, self.seed, self.info = alpha, probability, seed, info

    def mixed(self, batches: Iterator[Any], *, epoch: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Mix batches; what is drawn depends on the epoch and the position of a batch's first sample."""
        for x, y in batches:
            if self.info.task == "multiclass":
                y = torch.nn.functional.one_hot(y, self.info.num_classes).to(torch.float32)
            random, size = np.random.default_rng(mix(self.seed, "mixup", epoch, start)), len(x)
            if random.random() < self.probability:
                weight = float(random.beta(self.alpha, self.alpha))
                partner = torch.from_numpy(random.permutation(size))
                x, y = torch.lerp(x[partner], x, weight), torch.lerp(y[partner], y, weight)
            yield x, y
            start += size
