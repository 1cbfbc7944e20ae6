"""How batches are made, and what happens to one between the data set and the model: scaling, augmentation, mixup.

A transform takes a whole batch with the random numbers of its samples. `as_transforms` makes such transforms of those
that take one sample and draw from the global generators, as torchvision's do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.failures import DEBUG, in_short, is_dead_worker, is_out_of_memory, user_frame
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.info import DataInfo
from lightkit.data.sources import kept_generators, seed_generators

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


def fit_normalizer(kind: str, batches: Iterable[Tensor]) -> Normalizer | None:
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
        raise UserError(
            "these inputs are not numbers to scale", argument="normalize", expected="none", received=str(batch.dtype)
        )
    if not per_channel:
        return batch.to(torch.float64)
    if batch.dim() != 4:
        raise UserError(
            "these inputs are not images",
            argument="normalize",
            expected="(channels, height, width)",
            received=tuple(batch.shape[1:]),
            fix="data.normalize=standard",
        )
    return batch.to(torch.float64).transpose(0, 1).flatten(1).T


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
        """Tell whether batches pass unchanged."""
        return self.normalizer is None and not self.augment

    @property
    def sample_wise(self) -> bool:
        """Tell whether a sample comes out the same whatever others are prepared with it."""
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
        check_range("mixup.probability", probability, low=0, high=1, what="not a share of the batches")
        if info.task in ("language_modeling", "custom"):
            raise UserError(
                f"{info.task} targets cannot be mixed",
                argument="mixup.alpha",
                received=alpha,
                fix="data.mixup.alpha=null",
            )
        self.alpha, self.probability, self.seed, self.info = alpha, probability, seed, info

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None, *, seed: int, info: DataInfo) -> Mixup | None:
        """Make a mixup from `alpha` and `probability`; None without an `alpha`."""
        settings = settings or {}
        return None if settings.get("alpha") is None else cls(**settings, seed=seed, info=info)

    def mixed(self, batches: Iterable[Any], *, epoch: int, start: int) -> Generator[tuple[Tensor, Tensor], None, None]:
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


@dataclass(frozen=True)
class LoaderOptions:
    """How batches are made.

    Args:
        batch_size: Samples per batch, over all processes that train together.
        eval_batch_size: Samples per batch in validation and test; None takes `batch_size`.
        shuffle: Draw a new order each epoch; otherwise rows come as they are.
        drop_last: Leave out a last smaller batch.
        seed: Seed of the order.
        pin_memory: Put batches into page-locked memory.
        num_workers: Processes that read samples, for data sets without `take`.
        persistent_workers: Keep them alive between epochs.
        prefetch_factor: Batches each of them prepares ahead.
        timeout_seconds: Longest wait for a batch of those processes; None or 0 waits for as long as it takes.
        replica: Which part of every batch to read, where processes share the batches.
        replicas: Number of those parts.
        split: Name of the split, for messages.

    Raises:
        UserError: A value is out of range.
    """

    batch_size: int = 64
    eval_batch_size: int | None = None
    shuffle: bool = False
    drop_last: bool = False
    seed: int = 0
    pin_memory: bool = False
    num_workers: int = 0
    persistent_workers: bool = True
    prefetch_factor: int = 2
    timeout_seconds: float | None = None
    replica: int = 0
    replicas: int = 1
    split: str = ""

    def __post_init__(self) -> None:
        check_range("batch_size", self.batch_size, low=1, what="too small")
        check_range("num_workers", self.num_workers, low=0, what="too small")
        check_range("prefetch_factor", self.prefetch_factor, low=1, what="too small")
        check_range("timeout_seconds", self.timeout_seconds, low=0, what="too small")
        check_range("eval_batch_size", self.eval_batch_size, low=1, what="too small")

    def for_evaluation(self, split: str) -> LoaderOptions:
        """Return these options for the batches of an evaluation: in order, none left out.

        Args:
            split: Name of the split.
        """
        size = self.eval_batch_size or self.batch_size
        return replace(self, batch_size=size, shuffle=False, drop_last=False, split=split)
