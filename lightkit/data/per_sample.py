"""Transforms that take one sample and draw from the global generators, as those of torchvision do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.failures import DEBUG, in_short, is_dead_worker, is_out_of_memory, user_frame
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.prepare import SampleWise, Transform
from lightkit.data.sample import kept_generators, seed_generators


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

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a changed copy of inputs `(B, ...)`.

        Raises:
            UserError: The transform raises, or gives no tensors of one shape.
        """
        shapes: list[set[tuple[int, ...]]] = [set() for _ in self.steps]
        changed = []
        with kept_generators():
            for item, at in zip(x, random.positions.tolist()):
                for (transform, key), seen in zip(self.steps, shapes):
                    seed_generators(mix(random.key, key, at))
                    item = _changed(transform, item, key)
                    seen.add(tuple(item.shape))
                changed.append(item)
        for (_, key), seen in zip(self.steps, shapes):
            if len(seen) > 1:
                found = " and ".join(map(str, sorted(seen)[:2]))
                what = "the samples of a batch come out with different shapes"
                raise UserError(what, key=key, expected="one shape for all", received=found)
        return torch.stack(changed)


def _changed(transform: Callable[[Tensor], Tensor], sample: Tensor, key: str) -> Tensor:
    """Apply a transform to a sample; the result is contiguous as in a batch, on which its last bits may depend."""
    name = type(transform).__name__
    try:
        changed: Any = transform(sample)
    except Exception as error:
        if isinstance(error, UserError) or is_out_of_memory(error) or is_dead_worker(error):
            raise
        what = f"{name} failed on a sample {tuple(sample.shape)} {str(sample.dtype)[6:]}: {in_short(error)}"
        raise UserError(what, key=key, origin=user_frame(error), fix=DEBUG) from error
    if not isinstance(changed, Tensor):
        raise UserError(f"{name} gives no tensor", key=key, received=type(changed).__name__)
    return changed.as_subclass(Tensor).contiguous()


def as_transforms(transforms: Sequence[Any]) -> tuple[Transform, ...]:
    """Make every transform one of batches: those that take an input and a `SampleRandom` are already.

    Neighbours that take one sample become one.

    Args:
        transforms: What `data.augment` holds, built.
    """
    made: list[Transform] = []
    for index, transform in enumerate(transforms):
        one = transform if _takes_random(transform) else PerSample(transform, f"data.augment[{index}]")
        last = made[-1] if made else None
        if isinstance(one, PerSample) and isinstance(last, PerSample):
            made[-1] = last.then(one)
        else:
            made.append(one)
    return tuple(made)


def _takes_random(transform: Any) -> bool:
    """Tell whether a transform must be called with two arguments, or names its second one `random`."""
    called = transform.forward if isinstance(transform, nn.Module) else transform
    try:
        parameters = [*inspect.signature(called).parameters.values()]
    except (TypeError, ValueError):
        return False
    plain = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    return len(plain) > 1 and (plain[1].default is inspect.Parameter.empty or plain[1].name == "random")
