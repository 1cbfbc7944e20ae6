"""Random changes of training samples, a whole batch at a time.

Shapes in this file: B samples, C channels, H × W pixels. Each transform takes inputs and a `SampleRandom` and returns
changed inputs; what happens to a sample depends on its own stream of numbers, so neither the batch size nor the
sample's neighbours matter. Inputs are already scaled (`data.normalize`): a `fill` of 0 is the mean where that is
`standard` or `image`. Transforms of one sample, as torchvision's, see pictures in [0, 1] where they come first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.per_sample import SampleWise
from lightkit.data.prepare import as_transforms


class Views:
    """Makes several views of each sample: the same transforms, with random numbers of its own for each view.

    What comes out is a tuple of batches, as `lightkit.trainer.TwoViews` takes it. It stands last in `data.augment`.

    Args:
        augment: The transforms of a view, applied in this order: of this file, or those of one sample.
        count: Number of views.
    """

    def __init__(self, augment: Sequence[Any], count: int = 2) -> None:
        check_range("count", count, low=2, what="views are compared with each other")
        self.augment, self.count = as_transforms(augment), count

    def __call__(self, x: Tensor, random: SampleRandom) -> tuple[Tensor, ...]:
        """Return the views of `(B, ...)`, each of the same shape."""
        made = [x] * self.count
        for view in range(self.count):
            own = SampleRandom(mix(random.key, "view", view), random.positions)
            for transform in self.augment:
                made[view] = transform(made[view], own)
        return tuple(made)


def alike_views(augment: Sequence[Any]) -> list[Views]:
    """Return what is left of transforms where nothing may be random: as many views of a sample, all alike."""
    return [Views((), one.count) for one in augment if isinstance(one, Views)]


class RandomShift(SampleWise):
    """Moves images by whole pixels; what comes in is `fill`.

    Args:
        pixels: Largest shift in each direction.
        fill: Value of pixels from outside.
    """

    def __init__(self, pixels: int = 4, fill: float = 0.0) -> None:
        check_range("pixels", pixels, low=0)
        self.pixels, self.fill = pixels, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a shifted copy of `(B, C, H, W)`."""
        sides = _image_size(x, self)
        moves = random.integers(0, 2 * self.pixels + 1, 2) - self.pixels
        moved = torch.full(x.shape, self.fill, dtype=x.dtype, device=x.device)
        for i, move in enumerate(moves.tolist()):
            (rows, from_rows), (columns, from_columns) = map(_overlap, sides, move)
            moved[i, :, rows, columns] = x[i, :, from_rows, from_columns]
        return moved


class RandomFlip(SampleWise):
    """Mirrors images left to right, or top to bottom.

    Args:
        probability: Share of samples that are mirrored.
        vertical: Top to bottom.
    """

    def __init__(self, probability: float = 0.5, vertical: bool = False) -> None:
        check_range("probability", probability, low=0, high=1)
        self.probability, self.vertical = probability, vertical

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a copy of `(B, C, H, W)` with some samples mirrored."""
        _image_size(x, self)
        mirrored = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for i, chosen in enumerate(_chosen(random, self.probability).tolist()):
            mirrored[i] = x[i].flip(-2 if self.vertical else -1) if chosen else x[i]
        return mirrored


class RandomAffine(SampleWise):
    """Turns, scales, shears and moves images, with bilinear interpolation.

    Args:
        degrees: Largest turn, in degrees, either way.
        scale: Largest relative change of size: 0.1 gives 0.9 to 1.1.
        shear: Largest shear, as a slope.
        translate: Largest move, as a share of the side.
        fill: Value of pixels from outside.
    """

    def __init__(
        self,
        degrees: float = 10.0,
        scale: float = 0.1,
        shear: float = 0.0,
        *,
        translate: float = 0.1,
        fill: float = 0.0,
    ) -> None:
        for name, value, high in (
            ("degrees", degrees, 180),
            ("scale", scale, 0.99),
            ("shear", shear, 10),
            ("translate", translate, 1),
        ):
            check_range(name, value, low=0, high=high)
        self.degrees, self.scale, self.shear, self.translate, self.fill = degrees, scale, shear, translate, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a changed copy of `(B, C, H, W)`."""
        height, width = _image_size(x, self)
        aspect = height / width  # -1 to 1 spans a side
        turn, size, shear, right, down = random.uniform(5, -1.0, 1.0).unbind(1)
        angle, size, shear = turn * math.radians(self.degrees), 1.0 / (1.0 + size * self.scale), shear * self.shear
        cosine, sine = angle.cos() * size, angle.sin() * size
        first = [cosine, (shear * cosine - sine) * aspect, 2.0 * self.translate * right]
        second = [sine / aspect, shear * sine + cosine, 2.0 * self.translate * down]
        maps = torch.stack([torch.stack(first, 1), torch.stack(second, 1)], 1)  # from output to input, (B, 2, 3)
        grid = functional.affine_grid(maps, list(x.shape), align_corners=False)
        moved = functional.grid_sample(x - self.fill, grid.to(x.dtype), align_corners=False)
        return moved + self.fill


class RandomErasing(SampleWise):
    """Overwrites a rectangle of each chosen image (Zhong et al. 2020, https://arxiv.org/abs/1708.04896).

    Args:
        probability: Share of samples with a rectangle.
        low: Smallest side of the rectangle, as a share of the image's side.
        high: Largest side of the rectangle, as a share of the image's side.
        fill: Value inside.
    """

    def __init__(self, probability: float = 0.5, low: float = 0.1, high: float = 0.4, *, fill: float = 0.0) -> None:
        check_range("probability", probability, low=0, high=1)
        check_range("high", high, low=0, high=1)
        check_range("low", low, low=0, high=high)
        self.probability, self.low, self.high, self.fill = probability, low, high, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a copy of `(B, C, H, W)` with rectangles."""
        sides = _image_size(x, self)
        inside = _chosen(random, self.probability)[:, None, None]
        for axis, side in enumerate(sides):
            length = random.uniform(1, self.low, self.high) * side
            begin = random.uniform() * (side - length)
            pixel = torch.arange(side, device=x.device) + 0.5
            within = (pixel >= begin) & (pixel < begin + length)
            inside = inside & (within[:, :, None] if axis == 0 else within[:, None, :])
        return x.masked_fill(inside[:, None], self.fill)


class GaussianNoise(SampleWise):
    """Adds normal noise to every element; for tables, to every feature.

    Args:
        deviation: Standard deviation of the noise, in units of the scaled inputs.
    """

    def __init__(self, deviation: float = 0.1) -> None:
        check_range("deviation", deviation, low=0)
        self.deviation = deviation

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a noisy copy of `(B, ...)`."""
        return x + random.normal(math.prod(x.shape[1:])).reshape(x.shape) * self.deviation


class FeatureDropout(SampleWise):
    """Sets single elements to `fill`, each by chance; for tables, whole features.

    Args:
        probability: Share of elements that are overwritten.
        fill: Value they get.
    """

    def __init__(self, probability: float = 0.1, fill: float = 0.0) -> None:
        check_range("probability", probability, low=0, high=1)
        self.probability, self.fill = probability, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a copy of `(B, ...)` with holes."""
        return x.masked_fill(random.uniform(math.prod(x.shape[1:])).reshape(x.shape) < self.probability, self.fill)


class Brightness(SampleWise):
    """Adds one random number to all of a sample.

    Args:
        strength: Largest change, in units of the scaled inputs.
    """

    def __init__(self, strength: float = 0.2) -> None:
        check_range("strength", strength, low=0)
        self.strength = strength

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a brighter or darker copy of `(B, ...)`."""
        return x + _per_sample(random.uniform(1, -self.strength, self.strength)[:, 0], x)


class Contrast(SampleWise):
    """Scales a sample's distance from its own mean.

    Args:
        strength: Largest relative change: 0.2 gives 0.8 to 1.2.
    """

    def __init__(self, strength: float = 0.2) -> None:
        check_range("strength", strength, low=0, high=1)
        self.strength = strength

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Return a copy of `(B, ...)` with other contrast."""
        mean = _per_sample(x.flatten(1).mean(1), x)
        factor = _per_sample(random.uniform(1, 1.0 - self.strength, 1.0 + self.strength)[:, 0], x)
        return (x - mean) * factor + mean


def _chosen(random: SampleRandom, probability: float) -> Tensor:
    return random.uniform()[:, 0] < probability


def _overlap(side: int, by: int) -> tuple[slice, slice]:
    """Return where the pixels of a line that stay in it after a move lie, and where they come from."""
    by = max(-side, min(side, by))
    begin, end = max(0, -by), side - max(0, by)
    return slice(begin, end), slice(begin + by, end + by)


def _per_sample(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (x.dim() - 1)))


def _image_size(x: Tensor, transform: object) -> tuple[int, int]:
    if x.dim() != 4:
        what, key = f"{type(transform).__name__} is for images", "data.augment"
        raise UserError(what, key=key, expected="inputs (channels, height, width)", received=tuple(x.shape[1:]))
    return x.shape[2], x.shape[3]
