"""Random changes of training samples, a whole batch at a time.

Shapes in this file: B samples, C channels, H × W pixels. Each transform takes inputs and a `SampleRandom` and returns
changed inputs; what happens to a sample depends on its own stream of numbers, so neither the batch size nor the
sample's neighbours matter. Inputs are already scaled (`data.normalize`): a `fill` of 0 is the mean where that is
`standard` or `image`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom


class RandomShift:
    """Moves images by whole pixels; what comes in is `fill`.

    Args:
        pixels: Largest shift in each direction.
        fill: Value of pixels from outside.
    """

    def __init__(self, pixels: int = 4, fill: float = 0.0) -> None:
        _check("pixels", pixels, 0)
        self.pixels, self.fill = pixels, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Shifted copy of `(B, C, H, W)`."""
        height, width = _image_size(x, self)
        p = self.pixels
        offset = random.integers(0, 2 * p + 1, 2)
        padded = functional.pad(x, (p, p, p, p), value=self.fill)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(len(x)), :, offset[:, 0], offset[:, 1]]


class RandomFlip:
    """Mirrors images left to right, or top to bottom.

    Args:
        probability: Share of samples that are mirrored.
        vertical: Top to bottom.
    """

    def __init__(self, probability: float = 0.5, vertical: bool = False) -> None:
        _check("probability", probability, 0, 1)
        self.probability, self.vertical = probability, vertical

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Copy of `(B, C, H, W)` with some samples mirrored."""
        _image_size(x, self)
        chosen = _chosen(random, self.probability)
        return torch.where(_per_sample(chosen, x), x.flip(-2 if self.vertical else -1), x)


class RandomAffine:
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
            _check(name, value, 0, high)
        self.degrees, self.scale, self.shear, self.translate, self.fill = degrees, scale, shear, translate, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Changed copy of `(B, C, H, W)`."""
        height, width = _image_size(x, self)
        grid = functional.affine_grid(self._matrices(random, height / width), list(x.shape), align_corners=False)
        moved = functional.grid_sample(x - self.fill, grid.to(x.dtype), align_corners=False)
        return moved + self.fill

    def _matrices(self, random: SampleRandom, aspect: float) -> Tensor:
        """Output to input coordinates, `(B, 2, 3)`; -1 to 1 spans a side, hence the aspect ratio."""
        turn, size, shear, right, down = random.uniform(5, -1.0, 1.0).unbind(1)
        angle, size, shear = turn * math.radians(self.degrees), 1.0 / (1.0 + size * self.scale), shear * self.shear
        cosine, sine = angle.cos() * size, angle.sin() * size
        first = [cosine, (shear * cosine - sine) * aspect, 2.0 * self.translate * right]
        second = [sine / aspect, shear * sine + cosine, 2.0 * self.translate * down]
        return torch.stack([torch.stack(first, 1), torch.stack(second, 1)], 1)


class RandomErasing:
    """Overwrites a rectangle of each chosen image (Zhong et al. 2020, https://arxiv.org/abs/1708.04896).

    Args:
        probability: Share of samples with a rectangle.
        low: Smallest side of the rectangle, as a share of the image's side.
        high: Largest side of the rectangle, as a share of the image's side.
        fill: Value inside.
    """

    def __init__(self, probability: float = 0.5, low: float = 0.1, high: float = 0.4, *, fill: float = 0.0) -> None:
        _check("probability", probability, 0, 1)
        _check("high", high, 0, 1)
        _check("low", low, 0, high)
        self.probability, self.low, self.high, self.fill = probability, low, high, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Copy of `(B, C, H, W)` with rectangles."""
        sides = _image_size(x, self)
        inside = _chosen(random, self.probability)[:, None, None]
        for axis, side in enumerate(sides):
            length = random.uniform(1, self.low, self.high) * side
            begin = random.uniform() * (side - length)
            pixel = torch.arange(side) + 0.5
            within = (pixel >= begin) & (pixel < begin + length)
            inside = inside & (within[:, :, None] if axis == 0 else within[:, None, :])
        return x.masked_fill(inside[:, None], self.fill)


class GaussianNoise:
    """Adds normal noise to every element; for tables, to every feature.

    Args:
        deviation: Standard deviation of the noise, in units of the scaled inputs.
    """

    def __init__(self, deviation: float = 0.1) -> None:
        _check("deviation", deviation, 0)
        self.deviation = deviation

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Noisy copy of `(B, ...)`."""
        return x + random.normal(math.prod(x.shape[1:])).reshape(x.shape) * self.deviation


class FeatureDropout:
    """Sets single elements to `fill`, each by chance; for tables, whole features.

    Args:
        probability: Share of elements that are overwritten.
        fill: Value they get.
    """

    def __init__(self, probability: float = 0.1, fill: float = 0.0) -> None:
        _check("probability", probability, 0, 1)
        self.probability, self.fill = probability, fill

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Copy of `(B, ...)` with holes."""
        return x.masked_fill(random.uniform(math.prod(x.shape[1:])).reshape(x.shape) < self.probability, self.fill)


class Brightness:
    """Adds one random number to all of a sample.

    Args:
        strength: Largest change, in units of the scaled inputs.
    """

    def __init__(self, strength: float = 0.2) -> None:
        _check("strength", strength, 0)
        self.strength = strength

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Brighter or darker copy of `(B, ...)`."""
        return x + _per_sample(random.uniform(1, -self.strength, self.strength)[:, 0], x)


class Contrast:
    """Scales a sample's distance from its own mean.

    Args:
        strength: Largest relative change: 0.2 gives 0.8 to 1.2.
    """

    def __init__(self, strength: float = 0.2) -> None:
        _check("strength", strength, 0, 1)
        self.strength = strength

    def __call__(self, x: Tensor, random: SampleRandom) -> Tensor:
        """Copy of `(B, ...)` with other contrast."""
        mean = _per_sample(x.flatten(1).mean(1), x)
        factor = _per_sample(random.uniform(1, 1.0 - self.strength, 1.0 + self.strength)[:, 0], x)
        return (x - mean) * factor + mean


def _chosen(random: SampleRandom, probability: float) -> Tensor:
    return random.uniform()[:, 0] < probability


def _per_sample(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (x.dim() - 1)))


def _image_size(x: Tensor, transform: object) -> tuple[int, int]:
    if x.dim() != 4:
        raise UserError(
            f"{type(transform).__name__} is for images",
            key="data.augment",
            expected="inputs (channels, height, width)",
            received=tuple(x.shape[1:]),
        )
    return x.shape[2], x.shape[3]


def _check(name: str, value: float, low: float, high: float = math.inf) -> None:
    if not low <= value <= high:
        raise UserError(
            "out of range",
            key=f"data.augment.{name}",
            received=value,
            expected=f"{low} or more" if high == math.inf else f"{low} to {high}",
        )
