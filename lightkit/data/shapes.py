"""Pictures of geometric shapes, drawn when they are asked for.

Shapes in this file: B samples, C channels, S pixels a side. A sample depends on (seed, its number) alone, bit for bit,
whatever it is drawn together with: only additions, products, roots and comparisons are used on pixels, which round the
same everywhere in a tensor, and angles come from a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom, mix
from lightkit.data.tensors import DataInfo, fingerprint

_PIECE = 256
_ANGLES = 4096
_CACHE_BYTES = 1 << 30
# Numbers of the first sample of each split, so far apart that a larger training split leaves the others as they are.
_FIRST = {"train": 0, "val": 1 << 40, "test": 1 << 41}


def _cross(u: Tensor, v: Tensor) -> Tensor:
    u, v = u.abs(), v.abs()
    return torch.minimum(torch.maximum(u - 0.92, v - 0.28), torch.maximum(v - 0.92, u - 0.28))


def _star(u: Tensor, v: Tensor) -> Tensor:
    """Draw a star of five points, by folding the plane (https://iquilezles.org/articles/distfunctions2d/)."""
    a, b = 0.809017, 0.587785
    u = u.abs()
    fold = 2.0 * (u * a - v * b).clamp(min=0.0)
    u, v = u - fold * a, v + fold * b
    fold = 2.0 * (-u * a - v * b).clamp(min=0.0)
    u, v = u + fold * a, v + fold * b
    u, v = u.abs(), v - 1.0
    x, y = 0.42 * b, 0.42 * a - 1.0
    along = ((u * x + v * y) / (x * x + y * y)).clamp(0.0, 1.0)
    return _length(u - along * x, v - along * y) * torch.sign(v * x - u * y)


def _length(u: Tensor, v: Tensor) -> Tensor:
    return (u * u + v * v).sqrt()


KINDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circle": lambda u, v: _length(u, v) - 0.85,
    "square": lambda u, v: torch.maximum(u.abs(), v.abs()) - 0.72,
    "triangle": lambda u, v: torch.maximum(u.abs() * 0.8660254 + v * 0.5, -v) - 0.5,
    "star": _star,
    "cross": _cross,
    "ring": lambda u, v: (_length(u, v) - 0.68).abs() - 0.2,
    "crescent": lambda u, v: torch.maximum(_length(u, v) - 0.88, 0.66 - _length(u - 0.42, v)),
    "bar": lambda u, v: torch.maximum(u.abs() - 0.95, v.abs() - 0.3),
}
"""Signed distance to the outline (negative inside) of each shape, in units of its radius."""


class Shapes:
    """Classes of shapes at random places, sizes, angles and colours, on a noisy background with distractors.

    Args:
        size: Pixels a side, S.
        train: Samples of the training split.
        val: Samples of the validation split; 0 leaves the choice to `data.split`.
        test: Samples of the test split; 0 leaves the choice to `data.split`.
        channels: 3 for colour, 1 for grey.
        classes: The first so many of `KINDS`, or the names of some.
        noise: Largest change of a pixel by noise, 0 to 1.
        distractors: Dots and lines that belong to no class.
        cache: Keep drawn pictures (one byte a level), up to 1 GiB.
        seed: Seed of the pictures, apart from the run's seed.

    Raises:
        UserError: A number is out of range.
    """

    exact = True

    def __init__(
        self,
        size: int = 32,
        train: int = 8000,
        val: int = 1000,
        test: int = 2000,
        *,
        channels: int = 3,
        classes: int | Sequence[str] = len(KINDS),
        noise: float = 0.15,
        distractors: int = 3,
        cache: bool = True,
        seed: int = 0,
    ) -> None:
        kinds = _kinds(classes)
        ranges = {
            "size": (size, 8, 4096),
            "train": (train, 1, 1 << 40),
            "val": (val, 0, 1 << 40),
            "test": (test, 0, 1 << 40),
            "classes": (len(kinds), 2, len(KINDS)),
            "noise": (noise, 0, 1),
            "distractors": (distractors, 0, 100),
        }
        for name, (value, low, high) in ranges.items():
            check_range(name, value, low=low, high=high)
        if channels not in (1, 3):
            raise UserError("out of range", argument="channels", received=channels, expected="1 or 3")
        self.size, self.channels, self.noise, self.distractors = size, channels, noise, distractors
        self.kinds, self.seed = kinds, seed
        counts = {name: count for name, count in (("train", train), ("val", val), ("test", test)) if count}
        self._numbers = torch.cat([torch.arange(count) + _FIRST[name] for name, count in counts.items()])
        pieces = torch.arange(len(self._numbers)).split(list(counts.values()))
        self.splits = dict(zip(counts, pieces, strict=True))
        number = len(kinds) if kinds == tuple(KINDS)[: len(kinds)] else kinds  # as before names could be given
        mark = fingerprint([size, train, val, test, channels, number, noise, distractors, seed])
        self.info = DataInfo("multiclass", (channels, size, size), len(kinds), kinds, fingerprint=mark)
        fits = cache and len(self) * math.prod(self.info.input_shape) <= _CACHE_BYTES
        self._kept = torch.empty(len(self), *self.info.input_shape, dtype=torch.uint8) if fits else None
        self._drawn = torch.zeros(len(self), dtype=torch.bool)

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return pictures `(B, C, S, S)` in [0, 1] and classes `(B,)` of `rows`."""
        if self._kept is None:
            images = self.draw(rows)
        else:
            missing = rows[~self._drawn[rows]].unique()
            if len(missing):
                self._kept[missing], self._drawn[missing] = self.draw(missing), True
            images = self._kept.index_select(0, rows)
        return images.to(torch.float32).div_(255.0), self._classes(rows)

    @property
    def strata(self) -> Tensor:
        """Classes of all samples, `(N,)`."""
        return self._classes(torch.arange(len(self)))

    def draw(self, rows: Tensor) -> Tensor:
        """Draw the pictures of `rows` as levels, `(B, C, S, S)` uint8."""
        pieces = rows.split(_PIECE) if len(rows) else [rows]
        return torch.cat([self._draw(piece) for piece in pieces])

    def _classes(self, rows: Tensor) -> Tensor:
        return self._random(rows, "class").integers(0, len(self.kinds))[:, 0]

    def _random(self, rows: Tensor, occasion: str) -> SampleRandom:
        return SampleRandom(mix(self.seed, "shapes", occasion), self._numbers[rows])

    def _draw(self, rows: Tensor) -> Tensor:
        random = self._random(rows, "picture")
        background = random.uniform(self.channels)
        # The farthest two colours of a channel can be on a circle is 0.5: an offset of 0.35 to 0.65 keeps them apart.
        colour = (background + random.uniform(self.channels, 0.35, 0.65)) % 1.0
        slope = random.uniform(2, -0.3, 0.3)[:, :, None, None]  # of brightness
        y, x = self._pixels()
        ramp = (x[None] * slope[:, 0] + y[None] * slope[:, 1]) * (1.0 / self.size)
        canvas = background[:, :, None, None] + ramp[:, None]
        for number in range(self.distractors):
            canvas = self._distract(canvas, random, line=number % 2 == 0)
        canvas = _paint(canvas, self._shape(rows, random), colour)
        canvas = self._distract(canvas, random, line=False) if self.distractors else canvas
        # Even noise in [-1, 1), four pixels of 16 bits from one random number.
        count = math.prod(canvas.shape[1:])
        lanes = random.bits(-(-count // 4)).view(torch.int16)[:, :count]
        noise = lanes.reshape(canvas.shape).to(torch.float32) * (1.0 / 32768.0)
        canvas = canvas + noise * self.noise
        return (canvas.clamp_(0.0, 1.0) * 255.0 + 0.5).to(torch.uint8)

    def _shape(self, rows: Tensor, random: SampleRandom) -> Tensor:
        """Compute how much of each pixel the sample's shape covers, `(B, S, S)`."""
        radius = random.uniform(1, 0.2, 0.4) * self.size
        centre = radius + random.uniform(2) * (self.size - 2.0 * radius)
        u, v = self._local(centre, random.integers(0, _ANGLES))
        u, v = u / radius[:, :, None], v / radius[:, :, None]
        kind = self._classes(rows)
        distance = torch.empty_like(u)
        for number, name in enumerate(self.kinds):
            chosen = (kind == number).nonzero()[:, 0]
            distance[chosen] = KINDS[name](u[chosen], v[chosen])
        return (0.5 - distance * radius[:, :, None]).clamp_(0.0, 1.0)

    def _distract(self, canvas: Tensor, random: SampleRandom, *, line: bool) -> Tensor:
        """Paint a thin line or a small dot of any colour."""
        centre = random.uniform(2, 0.0, float(self.size))
        u, v = self._local(centre, random.integers(0, _ANGLES))
        # Thinner than any bar and smaller than any circle, so that every picture has one right answer.
        length, width = random.uniform(1, 0.1, 0.4) * self.size, random.uniform(1, 0.02, 0.07) * self.size
        width = width * 0.5 if line else width
        distance = torch.maximum(u.abs() - length[:, :, None], v.abs()) if line else _length(u, v)
        cover = (0.5 - (distance - width[:, :, None])).clamp_(0.0, 1.0)
        return _paint(canvas, cover, random.uniform(self.channels))

    def _local(self, centre: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Return coordinates of the pixels from `centre` `(B, 2)`, turned by `angle` `(B, 1)`: two `(B, S, S)`."""
        turns = torch.arange(_ANGLES, dtype=torch.float64) * (2 * math.pi / _ANGLES)
        cosine = turns.cos().to(torch.float32)[angle][:, :, None]
        sine = turns.sin().to(torch.float32)[angle][:, :, None]
        y, x = self._pixels()
        x, y = x[None] - centre[:, 0, None, None], y[None] - centre[:, 1, None, None]
        return x * cosine + y * sine, y * cosine - x * sine

    def _pixels(self) -> tuple[Tensor, Tensor]:
        middle = torch.arange(self.size, dtype=torch.float32) + 0.5
        return middle[:, None], middle[None, :]


def _kinds(classes: int | Sequence[str]) -> tuple[str, ...]:
    """Name the classes; a number out of range gives as many names, too few or too many."""
    if isinstance(classes, int):
        return (*KINDS, *[""] * max(0, classes - len(KINDS)))[: max(0, classes)]
    for name in classes:
        if name not in KINDS:
            raise UserError("there is no such shape", argument="classes", received=name, choices=KINDS)
    if len(set(classes)) < len(classes):
        raise UserError("a shape twice", argument="classes", received=", ".join(classes))
    return tuple(classes)


def _paint(canvas: Tensor, cover: Tensor, colour: Tensor) -> Tensor:
    cover = cover[:, None]
    return canvas * (1.0 - cover) + colour[:, :, None, None] * cover
