"""Each transform changes samples, whatever batch they are in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom
from lightkit.data import transforms as T

OF_IMAGES = [T.RandomShift(2), T.RandomFlip(), T.RandomFlip(vertical=True), T.RandomAffine(20, 0.2, 0.1),
             T.RandomErasing()]  # fmt: skip
OF_ANY = [T.GaussianNoise(), T.FeatureDropout(), T.Brightness(), T.Contrast()]


def apply(transform: Any, x: Tensor, positions: Tensor | None = None) -> Tensor:
    return transform(x, SampleRandom(7, torch.arange(len(x)) if positions is None else positions))


def images(count: int = 23) -> Tensor:
    return torch.randn(count, 3, 9, 11, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("transform", [*OF_IMAGES, *OF_ANY], ids=lambda t: type(t).__name__)
def test_result_is_independent_of_the_batch(transform: Any) -> None:
    x = images()
    kept = x.clone()
    whole = apply(transform, x)
    pieces = [apply(transform, part, rows) for part, rows in zip(x.split(4), torch.arange(23).split(4), strict=True)]
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(x, kept), "the input was written to"
    assert (whole.shape, whole.dtype) == (x.shape, x.dtype)
    assert not torch.equal(whole, x)
    if transform in OF_ANY:
        assert apply(transform, x.flatten(1)).shape == x.flatten(1).shape
    else:
        with pytest.raises(UserError, match="is for images"):
            apply(transform, x.flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("pixels", [0, 3, 12])
def test_shift_and_flip_are_what_indexing_gives(dtype: torch.dtype, pixels: int) -> None:
    """Also of inputs that lie otherwise in memory, and where a shift is wider than the image."""
    x = (images() * 50).abs().to(dtype).to(memory_format=torch.channels_last)
    random = SampleRandom(7, torch.arange(23))
    offset = random.integers(0, 2 * pixels + 1, 2)
    chosen = random.uniform()[:, 0] < 0.5
    windows = torch.nn.functional.pad(x, (pixels,) * 4, value=9.0).unfold(2, 9, 1).unfold(3, 11, 1)
    shifted = windows[torch.arange(23), :, offset[:, 0], offset[:, 1]]
    random = SampleRandom(7, torch.arange(23))
    moved = T.RandomShift(pixels, fill=9.0)(x, random)
    assert torch.equal(moved, shifted)
    mirrored = T.RandomFlip()(moved, random)
    assert torch.equal(mirrored, torch.where(chosen[:, None, None, None], shifted.flip(-1), shifted))
    assert (mirrored.dtype, mirrored.is_contiguous()) == (dtype, True)


def test_flip_share() -> None:
    x = images(2000)
    assert torch.equal(apply(T.RandomFlip(1.0), x), x.flip(-1))
    assert torch.equal(apply(T.RandomFlip(0.0), x), x)
    flipped = (apply(T.RandomFlip(0.3), x) != x).flatten(1).any(1).float().mean()
    assert 0.25 < flipped < 0.35


class Fixed:
    def uniform(self, count: int = 1, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.tensor([[0.5, 0.0, 0.0, 0.0, 0.0]])


def test_affine_without_change_is_the_identity_and_a_turn_turns() -> None:
    x = images()
    assert torch.allclose(apply(T.RandomAffine(0, 0, 0, translate=0), x), x, atol=1e-5)
    line = torch.zeros(1, 1, 32, 64)
    line[:, :, 15:17] = 1.0
    turned = T.RandomAffine(180, 0, 0, translate=0)(line, Fixed())  # type: ignore[arg-type]
    assert turned[0, 0, :, 31:33].min() > 0.4
    assert turned[0, 0, :, 40:].max() == 0.0


def test_erasing_overwrites_one_rectangle() -> None:
    erased = apply(T.RandomErasing(0.5, 0.2, 0.5, fill=-1.0), torch.ones(200, 2, 20, 20)) == -1.0
    assert torch.equal(erased[:, 0], erased[:, 1])
    hit = erased[:, 0].flatten(1).any(1)
    assert 70 < hit.sum() < 130
    for mask in erased[hit][:, 0]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)
        assert 3 <= rows.sum() <= 10


def test_noise_has_its_deviation() -> None:
    noise = apply(T.GaussianNoise(0.5), torch.zeros(200, 50))
    assert abs(noise.std() - 0.5) < 0.02
    assert abs(noise.mean()) < 0.02


def test_views_differ_from_each_other_and_depend_on_the_sample_alone() -> None:
    x, views = images(), T.Views([T.RandomShift(2), T.GaussianNoise()])
    one, other = apply(views, x)
    assert one.shape == other.shape == x.shape
    assert not torch.equal(one, other)
    late = apply(views, x[5:], torch.arange(5, 23))
    assert torch.equal(late[0], one[5:])
    assert torch.equal(late[1], other[5:])
    assert len(apply(T.Views([], count=3), x)) == 3
    with pytest.raises(UserError, match=r"(?s)count: views are compared with each other.*received: 1"):
        T.Views([], count=1)
