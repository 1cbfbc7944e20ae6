"""Transforms that take one sample and draw from the global generators, as those of torchvision do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.blame import DEBUG, blame, in_short
from lightkit.common.errors import UserError
from lightkit.common.lost import is_dead_worker
from lightkit.common.memory import is_out_of_memory
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.prepare import Transform
from lightkit.data.sample import kept_generators, seed_generators


class PerSample:
    """Applies a transform of one sample to each of a batch.

    The generators of Python, NumPy and PyTorch are seeded for each sample by its place in the epoch, and put back
    afterwards: a sample looks the same whatever the batch size, the number of workers and where an epoch was entered.

    Args:
        transform: Takes the input of one sample, a tensor `(...)`, and returns a tensor.
        key: Configuration key of the transform, for errors.
    """

    def __init__(self, transform: Callable[[Tensor], Tensor], key: str) -> None:
        self.transform, self.key = transform, key

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Changed copy of inputs `(B, ...)`.

        Raises:
            UserError: The transform raises, or gives no tensors of one shape.
        """
        with kept_generators():
            changed = [self._one(item, mix(random.key, self.key, at)) for item, at in zip(x, random.positions.tolist())]
        shapes = {tuple(item.shape) for item in changed}
        if len(shapes) > 1:
            found = " and ".join(map(str, sorted(shapes)[:2]))
            what = "the samples of a batch come out with different shapes"
            raise UserError(what, key=self.key, expected="one shape for all", received=found)
        return torch.stack(changed)

    def _one(self, sample: Tensor, seed: int) -> Tensor:
        seed_generators(seed)
        name = type(self.transform).__name__
        try:
            changed: Any = self.transform(sample)
        except Exception as error:
            if isinstance(error, UserError) or is_out_of_memory(error) or is_dead_worker(error):
                raise
            what = f"{name} failed on a sample {tuple(sample.shape)} {str(sample.dtype)[6:]}: {in_short(error)}"
            raise UserError(what, key=self.key, origin=blame(error), fix=DEBUG) from error
        if not isinstance(changed, Tensor):
            raise UserError(f"{name} gives no tensor", key=self.key, received=type(changed).__name__)
        return changed


def as_transforms(transforms: Sequence[Any]) -> tuple[Transform, ...]:
    """Make every transform one of batches: those that take an input and a `SampleRandom` are already.

    Args:
        transforms: What `data.augment` holds, built.
    """
    return tuple(
        transform if _takes_random(transform) else PerSample(transform, f"data.augment[{index}]")
        for index, transform in enumerate(transforms)
    )


def _takes_random(transform: Any) -> bool:
    """Whether a transform has to be called with two arguments, or names its second one `random`."""
    called = transform.forward if isinstance(transform, nn.Module) else transform
    try:
        parameters = [*inspect.signature(called).parameters.values()]
    except (TypeError, ValueError):
        return False
    plain = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    return len(plain) > 1 and (plain[1].default is inspect.Parameter.empty or plain[1].name == "random")
