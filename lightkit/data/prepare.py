"""How batches are made, and what happens to one between the data set and the model: scaling, augmentation, mixup.

A transform takes a whole batch with the random numbers of its samples. `as_transforms` makes such transforms of those
that take one sample and draw from the global generators, as torchvision's do.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.modules import shape_of
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.normalize import Normalizer
from lightkit.data.orders import NEWEST
from lightkit.data.per_sample import PerSample, SampleWise
from lightkit.data.placed import lies_within
from lightkit.data.tensors import DataInfo


def is_pair(batch: Any) -> bool:
    """Tell whether a batch is a pair of inputs and targets of any kind: a tensor, or pictures with boxes."""
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    return pair and (isinstance(batch[0], Tensor) or lies_within(*batch))


class Transform(Protocol):
    """A random change of a whole batch; sample `i` may only use the numbers of its own stream in `random`."""

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a changed copy of inputs `(B, ...)`."""
        ...


@dataclass(frozen=True)
class Prepare:
    """Scales the inputs of a batch and applies the transforms in order, which see scaled inputs (but: `sees_pixels`).

    Args:
        seed: Seed of the run.
        normalizer: Scaling; None where the data set is scaled already.
        augment: Transforms of training inputs.
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

    def apart(self) -> tuple[list[PerSample], Prepare]:
        """Return the first transform alone where it `reads_whole` pictures (else an empty list), and what is left."""
        first = self.augment[0] if self.augment else None
        if not isinstance(first, PerSample) or not getattr(first.steps[0][0], "reads_whole", False):
            return [], self
        cut, rest = copy(first), copy(first)
        cut.steps, rest.steps = first.steps[:1], first.steps[1:]
        return [cut], replace(self, augment=(*([rest] if rest.steps else []), *self.augment[1:]))

    def __call__(self, batch: Any, *, epoch: int, first: int) -> Any:
        """Prepare a batch.

        Args:
            batch: Pairs (input, target).
            epoch: Number of the epoch.
            first: Position of the batch's first sample in the epoch.

        Raises:
            UserError: They are samples of another form, of which nobody knows what to change.
        """
        if self.idle:
            return batch
        if not is_pair(batch):
            what = "only the inputs of samples (input, target) are augmented, and these have another form"
            fix = "data.augment=[], and transforms in the data set itself"
            raise UserError(what, key="data.augment", received=shape_of(batch)[:200], fix=fix, family="data-setting")
        x, y = batch
        device, scale = x.device if isinstance(x, Tensor) else None, self.normalizer
        steps: list[Any] = [*self.augment]
        if scale is not None:
            steps.insert(sees_pixels(self.augment, x), scale)
        random = SampleRandom(mix(self.seed, "sample", epoch), torch.arange(first, first + len(x), device=device))
        within = lies_within(x, y)
        for transform in steps:
            if scale is not None and transform is scale:
                x = tuple(map(scale, x)) if isinstance(x, tuple) else scale(x)
            elif not within:
                x = transform(x, random)
            elif isinstance(transform, PerSample):
                x, y = transform(x, random, y)
            else:
                what = f"{type(transform).__name__} changes pictures, and not the masks or boxes in them"
                raise UserError(what, key="data.augment", fix="one of torchvision.transforms.v2, which move both")
        return x, y


def sees_pixels(augment: Sequence[Transform], x: Any) -> bool:
    """Tell whether the first of some transforms is applied to pictures before they are scaled.

    Transforms of one sample, as torchvision's, that come before all others are: those of colours take 0 to 1.

    Args:
        augment: The transforms.
        x: Inputs `(N, C, H, W)`, or others.
    """
    alone = [*getattr(augment[0], "augment", augment[:1])] if augment else []
    return isinstance(x, Tensor) and x.ndim == 4 and len(alone) == 1 and isinstance(alone[0], PerSample)


class Mixup:
    """Mixes every sample of a batch with another one, inputs and targets alike: by mixup, by CutMix, or by either.

    Mixup (Zhang et al. 2018, https://arxiv.org/abs/1710.09412) takes a weighted mean of the two. CutMix (Yun et al.
    2019, https://arxiv.org/abs/1905.04899) puts a rectangle of the other picture into the one; the targets count by
    area. Where both are on, each batch is mixed by one of them, as in timm. Classes become shares `(B, C)`, in unmixed
    batches too.

    Args:
        alpha: Parameter of Beta(alpha, alpha) of mixup, above 0; None leaves mixup out.
        probability: Share of batches that are mixed.
        cutmix_alpha: Parameter of Beta(alpha, alpha) that the share of the rectangle is drawn from; None leaves CutMix
            out.
        switch_probability: Share of CutMix in the mixed batches, where both are on.
        seed: Seed of the run.
        info: The data; classes are needed for their number.

    Raises:
        UserError: A parameter is out of range, or samples cannot be mixed.
    """

    def __init__(
        self,
        alpha: float | None,
        probability: float = 1.0,
        cutmix_alpha: float | None = None,
        switch_probability: float = 0.5,
        *,
        seed: int,
        info: DataInfo,
    ) -> None:
        self.alpha, self.cutmix_alpha, self.seed, self.info = alpha, cutmix_alpha, seed, info
        self.probability, self.switch_probability = probability, switch_probability
        for name in ("alpha", "cutmix_alpha"):
            self._check(f"mixup.{name}", getattr(self, name))
        for name in ("probability", "switch_probability"):
            check_range(f"mixup.{name}", getattr(self, name), low=0, high=1, what="not a share of the batches")
        if cutmix_alpha is not None and len(info.input_shape) != 3:
            what, expected = "CutMix cuts a rectangle out of pictures", "inputs of channels × height × width"
            received = " × ".join(map(str, info.input_shape)) or "samples of another kind"
            facts: dict[str, Any] = {"expected": expected, "received": received, "fix": "data.mixup.cutmix_alpha=null"}
            raise UserError(what, argument="mixup.cutmix_alpha", **facts)

    def _check(self, name: str, alpha: float | None) -> None:
        """Refuse what is no parameter of the distribution, and targets that cannot be mixed."""
        if alpha is None:
            return
        if not alpha > 0:
            what, expected = "not a parameter of Beta(alpha, alpha)", "above 0, or null"
            raise UserError(what, argument=name, expected=expected, received=alpha)
        if self.info.cardinalities or self.info.vocab_size is not None:
            what = "numbers of names (data.dataset.embedded) or of words cannot be mixed"
            raise UserError(what, argument=name, received=alpha, fix=f"data.{name}=null")
        if self.info.task not in ("multiclass", "binary", "multilabel", "regression"):
            what = f"{self.info.task} targets cannot be mixed"
            raise UserError(what, argument=name, received=alpha, fix=f"data.{name}=null")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None, *, seed: int, info: DataInfo) -> Mixup | None:
        """Make one from its arguments; None where neither mixup nor CutMix is on."""
        settings = settings or {}
        on = any(settings.get(name) is not None for name in ("alpha", "cutmix_alpha"))
        return cls(**settings, seed=seed, info=info) if on else None

    def mixed(self, batches: Iterable[Any], *, epoch: int, start: int) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Mix batches; what is drawn depends on the epoch and the position of a batch's first sample."""
        for x, y in batches:
            if self.info.task == "multiclass":
                y = torch.nn.functional.one_hot(y, self.info.num_classes).to(torch.float32)
            random, size = np.random.default_rng(mix(self.seed, "mixup", epoch, start)), len(x)
            if random.random() < self.probability:
                x, y = self._mixed(x, y, random)
            yield x, y
            start += size

    def _mixed(self, x: Tensor, y: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Mix a batch by one of the two ways."""
        cuts = self.cutmix_alpha is not None
        if cuts and self.alpha is not None:
            cuts = random.random() < self.switch_probability
        alpha = self.cutmix_alpha if cuts else self.alpha
        weight = float(random.beta(alpha, alpha))  # type: ignore[arg-type]
        partner = torch.from_numpy(random.permutation(len(x))).to(x.device)
        if not cuts:
            return torch.lerp(x[partner], x, weight), torch.lerp(y[partner], y, weight)
        top, bottom, left, right = _rectangle(x.shape[-2], x.shape[-1], 1 - weight, random)
        weight = 1 - (bottom - top) * (right - left) / (x.shape[-2] * x.shape[-1])  # it may reach over the edge
        pasted = x.clone()
        pasted[..., top:bottom, left:right] = x[partner][..., top:bottom, left:right]
        return pasted, torch.lerp(y[partner], y, weight)


def _rectangle(height: int, width: int, share: float, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw a rectangle of the form of a picture around any of its points, cut off at the edges."""
    bounds = []
    for length in (height, width):
        centre, half = int(random.integers(length)), int(length * share**0.5) / 2
        bounds += [max(0, math.floor(centre - half)), min(length, math.floor(centre + half))]
    return bounds[0], bounds[1], bounds[2], bounds[3]


def as_transforms(transforms: Sequence[Any], *, batchwise: bool = False) -> tuple[Transform, ...]:
    """Make every transform one of batches: those that take an input and a `SampleRandom` are already.

    Neighbours that take one sample become one.

    Args:
        transforms: What `data.augment` holds, built.
        batchwise: Refuse those of one sample, which cannot change batches on a device; but a first one that
            `reads_whole` pictures is for the loader.

    Raises:
        UserError: There is one, in other transforms too.
    """
    made: list[Transform] = []
    for index, transform in enumerate(transforms):
        one = transform if _takes_random(transform) else PerSample(transform, f"data.augment[{index}]")
        last = made[-1] if made else None
        if isinstance(one, PerSample) and isinstance(last, PerSample):
            made[-1] = last.then(one)
        else:
            made.append(one)
    late = Prepare(augment=made).apart()[1].augment if batchwise else ()
    parts = [part for one in late for part in (*getattr(one, "augment", ()), one)]
    alone = [type(step).__name__ for part in parts for step, _ in getattr(part, "steps", ())]
    if alone:
        what, fix = "these transforms change one sample at a time", "data.augment_on_device=false"
        expected = "transforms of whole batches, as those of lightkit.data.transforms"
        raise UserError(what, key="data.augment", expected=expected, received=", ".join(alone), fix=fix)
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
        sampler: Makes what draws it (see `EpochOrder`); None shuffles.
        order: How many rows are shuffled where there is no sampler, a name of `lightkit.data.orders.ORDERS`.
        drop_last: Leave out a last smaller batch.
        seed: Seed of the order.
        pin_memory: Put batches into page-locked memory.
        num_workers: Processes that read samples, for data sets without `take`.
        persistent_workers: Keep them alive between epochs.
        prefetch_factor: Batches each of them prepares ahead.
        timeout_seconds: Longest wait for a batch of those processes; None or 0 waits for as long as it takes.
        augment_on_device: Augment whole batches where they are computed (`Loader.epoch`), and not where they are read.
        replica: Which part of every batch to read, where processes share the batches.
        replicas: Number of those parts.
        split: Name of the split, for messages.
        collate: Makes a batch of a list of samples; None takes the `collate_fn` of the data set, or stacks them.
        weights: `(N,)` float32: how much each row counts, on average 1 in training; None counts all alike.
        epoch_batches: Batches of an epoch, which goes on where the one before it ended; None makes it one pass.

    Raises:
        UserError: A value is out of range.
    """

    batch_size: int = 64
    eval_batch_size: int | None = None
    shuffle: bool = False
    sampler: Callable[..., Any] | None = None
    order: str = NEWEST
    drop_last: bool = False
    seed: int = 0
    pin_memory: bool = False
    num_workers: int = 0
    persistent_workers: bool = True
    prefetch_factor: int = 2
    timeout_seconds: float | None = None
    augment_on_device: bool = False
    replica: int = 0
    replicas: int = 1
    split: str = ""
    collate: Callable[[list[Any]], Any] | None = None
    epoch_batches: int | None = None
    weights: Tensor | None = field(default=None, compare=False, repr=False)

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
        whole: dict[str, Any] = {"sampler": None, "drop_last": False, "epoch_batches": None}
        return replace(self, batch_size=size, shuffle=False, split=split, **whole)
