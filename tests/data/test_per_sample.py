"""Transforms of one sample, as torchvision has them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.common.randomness import SampleRandom
from lightkit.data.per_sample import PerSample, as_transforms
from lightkit.data.transforms import RandomFlip

SHORT = ("trainer.steps=2", "logger.tensorboard.enabled=false", "metrics=none", "model.channels=[4]")


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(()) + float(np.random.rand()) + random.random()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "target",
    [
        "torchvision.transforms.RandomHorizontalFlip",
        "torchvision.transforms.v2.RandomHorizontalFlip",
        "torchvision.transforms.v2.RandomCrop, size: 8, padding: 1",
        "own_transforms.brighter",
    ],
)
def test_transforms_of_one_argument_augment(target: str, cli: Callable[..., Any], project: Path) -> None:
    (project / "own_transforms.py").write_text(
        "class brighter:\n    def __call__(self, image):\n        return image + 1\n"
    )
    done = cli("train", "data=digits", "model=cnn", *SHORT, f"data.augment=[{{_target_: {target}}}]")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("torchvision.transforms.ToPILImage", "data.augment[0]: ToPILImage gives no tensor"),
        ("torchvision.transforms.ToTensor", "data.augment[0]: ToTensor failed on a sample (1, 8, 8) float32"),
    ],
)
def test_what_goes_wrong_is_told_of_the_transform(target: str, message: str, cli: Callable[..., Any]) -> None:
    done = cli("train", "data=digits", "model=cnn", *SHORT, f"data.augment=[{{_target_: {target}}}]")
    assert (done.code, message in done.err) == (2, True), done.err


def test_what_a_sample_becomes_depends_on_its_place_alone() -> None:
    transform, x = PerSample(noisy, "data.augment[0]"), torch.zeros(6, 2)
    whole = transform(x, SampleRandom(7, torch.arange(6)))
    parts = [transform(x[:2], SampleRandom(7, torch.arange(2))), transform(x[2:], SampleRandom(7, torch.arange(2, 6)))]
    assert torch.equal(whole, torch.cat(parts))
    assert len(set(whole[:, 0].tolist())) == 6
    assert not torch.equal(whole, transform(x, SampleRandom(8, torch.arange(6))))


def test_the_generators_are_put_back() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    PerSample(noisy, "data.augment[0]")(torch.zeros(2, 2), SampleRandom(7, torch.arange(2)))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_transforms_that_follow_one_another_give_what_each_gives_of_a_batch() -> None:
    def turned(image: torch.Tensor) -> torch.Tensor:
        return image.T if torch.rand(()) < 0.5 else image

    def laid(image: torch.Tensor) -> torch.Tensor:
        assert image.is_contiguous()
        return noisy(image)

    flip, x, places = RandomFlip(), torch.arange(200.0).reshape(8, 5, 5), torch.arange(3, 11)
    chain, kept, last = as_transforms([turned, laid, flip, noisy])
    assert kept is flip
    expected = PerSample(turned, "data.augment[0]")(x, SampleRandom(7, places))
    expected = PerSample(laid, "data.augment[1]")(expected, SampleRandom(7, places))
    assert torch.equal(chain(x, SampleRandom(7, places)), expected)
    alone = PerSample(noisy, "data.augment[3]")(x, SampleRandom(7, places))
    assert torch.equal(last(x, SampleRandom(7, places)), alone)


def test_of_transforms_that_follow_one_another_the_one_at_fault_is_named() -> None:
    def crop(image: torch.Tensor) -> torch.Tensor:
        return image[: int(torch.randint(1, 8, ()))]

    def broken(image: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    for transforms, key in (([noisy, crop, noisy], "1"), ([noisy, noisy, broken], "2")):
        (chain,) = as_transforms(transforms)
        with pytest.raises(UserError, match=rf"data\.augment\[{key}\]"):
            chain(torch.zeros(20, 9), SampleRandom(7, torch.arange(20)))


def test_samples_of_different_shapes_are_refused() -> None:
    def crop(x: torch.Tensor) -> torch.Tensor:
        return x[: int(torch.randint(1, 8, ()))]

    with pytest.raises(UserError, match=r"data\.augment\[0\]: the samples of a batch come out with different shapes"):
        PerSample(crop, "data.augment[0]")(torch.zeros(20, 9), SampleRandom(7, torch.arange(20)))


def test_transforms_of_batches_are_called_with_their_random_numbers() -> None:
    flip = RandomFlip()

    def whole(x: torch.Tensor, random: SampleRandom) -> torch.Tensor:
        return x + random.uniform()

    assert as_transforms([flip, whole]) == (flip, whole)
