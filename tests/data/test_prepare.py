"""Mixup, and transforms of one sample as torchvision has them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from lightkit.common.modules import tensors
from lightkit.common.randomness import SampleRandom
from lightkit.data import Data, DataInfo, TensorData, build_data
from lightkit.data import transforms as T
from lightkit.data.per_sample import PerSample
from lightkit.data.prepare import Mixup, as_transforms
from lightkit.data.transforms import RandomFlip
from tests.data.pictures import WHOLE

INFO = DataInfo("multiclass", (3,), 4)
SHORT = ("trainer.steps=2", "logger.tensorboard.enabled=false", "metrics=none", "model.channels=[4]")


def data(x: torch.Tensor, normalize: str = "standard", **settings: Any) -> Data:
    y = torch.arange(len(x)) % 4
    split = {"by": "ordered", "val": 0.25, "test": 0.25}
    return build_data(**{"dataset": TensorData(x, y), "split": split, "normalize": normalize, **settings})


def test_mixup_mixes_inputs_and_targets_alike_by_the_position_of_the_batch() -> None:
    x = torch.eye(8).repeat(5, 1)
    made = data(x, "none", mixup={"alpha": 0.5}, batch_size=4, split={"val": 0, "test": 0})
    whole, tail = list(made.train.epoch(1)), list(made.train.epoch(1, 16))
    for mixed, shares in whole:
        assert torch.allclose(shares.sum(1), torch.ones(len(shares)))
        assert torch.allclose(mixed.reshape(-1, 2, 4).sum(1), shares, atol=1e-6)
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(whole[4:], tail, strict=True))
    assert not torch.equal(whole[0][0], next(made.train.epoch(0))[0])
    assert made.evaluation("train").mixup is None  # type: ignore[union-attr]


def test_mixup_probability_and_shapes() -> None:
    x, y, mixed = torch.randn(16, 3), torch.arange(16) % 4, 0
    for seed in range(300):
        ((inputs, shares),) = Mixup(0.3, 0.4, seed=seed, info=INFO).mixed(iter([(x, y)]), epoch=0, start=0)
        assert shares.shape == (16, 4)
        mixed += not torch.equal(inputs, x)
    assert 90 < mixed < 150
    numbers = torch.randn(16)
    of_numbers = Mixup(1.0, seed=0, info=DataInfo("regression", (2,), 1))
    ((_, targets),) = of_numbers.mixed(iter([(x, numbers)]), epoch=0, start=0)
    assert targets.shape == (16,)
    assert not torch.equal(targets, numbers)


PICTURES = DataInfo("multiclass", (3, 6, 8), 4)


def test_cutmix_pastes_a_rectangle_and_counts_targets_by_its_area() -> None:
    x, y = torch.arange(16.0).reshape(16, 1, 1, 1).expand(16, 3, 6, 8), torch.arange(16) % 4
    shares = set[float]()
    for seed in range(60):
        cutmix = Mixup(None, cutmix_alpha=1.0, seed=seed, info=PICTURES)
        ((pictures, targets),) = cutmix.mixed(iter([(x, y)]), epoch=0, start=0)
        own = pictures == x
        assert torch.equal(own[:, 0], own[:, 1])
        areas = own[:, 0].float().mean((1, 2))
        moved = (~own).flatten(1).any(1)
        assert len(areas[moved].unique()) <= 1, "the same rectangle for all"
        pasted = pictures.flatten(1).amax(1) + pictures.flatten(1).amin(1) - torch.arange(16.0)  # the other sample
        expected = torch.nn.functional.one_hot(y, 4) * areas[:, None]
        expected += torch.nn.functional.one_hot(pasted.long() % 4, 4) * (1 - areas[:, None])
        assert torch.allclose(targets, expected, atol=1e-6)
        rows = (~own[:, 0]).any(2).sum(1) * (~own[:, 0]).any(1).sum(1)
        assert torch.equal(rows, (~own[:, 0]).sum((1, 2))), "a rectangle"
        shares |= {*areas.tolist()}
    assert len(shares) > 10
    assert torch.equal(x, torch.arange(16.0).reshape(16, 1, 1, 1).expand(16, 3, 6, 8)), "the batch is not changed"


def test_mixup_and_cutmix_take_turns() -> None:
    x, y, cut = torch.randn(16, 3, 6, 8), torch.arange(16) % 4, 0
    for seed in range(300):
        both = Mixup(1.0, 0.5, 1.0, 0.3, seed=seed, info=PICTURES)
        ((pictures, _),) = both.mixed(iter([(x, y)]), epoch=0, start=0)
        own = (pictures == x).float().mean()
        cut += bool(0 < own < 0.999) and not torch.equal(pictures, x) and bool(torch.isin(pictures, x).all())
    assert 20 < cut < 70


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(()) + float(np.random.rand()) + random.random()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("torchvision.transforms.v2.RandomCrop, size: 8, padding: 1", ""),
        ("torchvision.transforms.ToPILImage", "data.augment[0]: ToPILImage gives no tensor"),
        ("torchvision.transforms.ToTensor", "data.augment[0]: ToTensor failed on a sample (1, 8, 8) float32"),
    ],
)
def test_transforms_of_torchvision_augment_or_are_named(target: str, message: str, cli: Callable[..., Any]) -> None:
    done = cli("train", "data=digits", "model=cnn", *SHORT, f"data.augment=[{{_target_: {target}}}]")
    assert (done.code, message in done.err) == (2 if message else 0, True), done.err


def test_transforms_of_torchvision_see_pixels_and_not_scaled_ones() -> None:
    from torchvision.transforms import v2

    def dark(image: torch.Tensor) -> torch.Tensor:
        assert 0 <= image.min() < image.max() <= 1, "ColorJitter would cut off all else"
        return v2.functional.adjust_brightness(image, 0.5)

    pixels = torch.rand(40, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    for x in (pixels, pixels.mul(255).to(torch.uint8)):
        made = data(x, "image", augment=[dark, T.Contrast(0.0)], batch_size=4)
        assert made.normalizer is not None
        seen, rows = next(iter(made.train.epoch(0)))[0], made.train.order(0)[:4]
        expected = made.normalizer((x[rows] / 255 if x.dtype == torch.uint8 else x[rows]) * 0.5)
        assert torch.allclose(seen, expected, atol=1e-5)
        views, _ = next(iter(data(x, "image", augment=[T.Views([dark])], batch_size=4).train.epoch(0)))
        assert torch.allclose(views[1], expected, atol=1e-5)
        evaluated = next(iter(made.evaluation("val").epoch(0)))[0]  # type: ignore[union-attr]
        assert evaluated.min() < -1, "scaled as ever"
    late = data(pixels, "image", augment=[T.Contrast(0.0), lambda image: image.clamp(0)], batch_size=4)
    assert next(iter(late.train.epoch(0)))[0].min() == 0, "behind those of whole batches they see scaled ones"


@pytest.mark.thorough
def test_a_transform_of_ones_own_augments(cli: Callable[..., Any], project: Path) -> None:
    (project / "own_transforms.py").write_text(
        "class brighter:\n    def __call__(self, image):\n        return image + 1\n"
    )
    done = cli("train", "data=digits", "model=cnn", *SHORT, "data.augment=[{_target_: own_transforms.brighter}]")
    assert done.code == 0, done.err


BATCHWISE = [
    T.RandomShift(2), T.RandomFlip(), T.RandomAffine(20, 0.2, 0.1), T.RandomErasing(), T.GaussianNoise(),
    T.FeatureDropout(), T.Brightness(), T.Contrast(), T.Views([T.RandomFlip(), T.GaussianNoise()]),
]  # fmt: skip


class Rows(torch.utils.data.Dataset):
    def __init__(self, source: TensorData) -> None:
        self.source, self.targets = source, source.y

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> Any:
        return self.source[row]


@pytest.mark.parametrize("transform", [*BATCHWISE, None], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("kind", ["samples", "levels"])
def test_a_device_augments_batches_as_workers_do(kind: str, transform: Any, made: Any) -> None:
    """Also from the middle of an epoch on, with workers, before mixing, and by a part of the batch."""
    x = torch.randint(0, 256, (23, 3, 40, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = TensorData(x, torch.arange(23) % 3)
    settings: dict[str, Any] = {"split": WHOLE, "normalize": "image", "batch_size": 9}
    settings["augment"] = BATCHWISE[:-1] if transform is None else [transform]
    settings["mixup"] = {"alpha": 0.3, "cutmix_alpha": 1.0} if transform is None else None
    dataset = source if kind == "levels" else Rows(source)
    placed: list[Any] = []

    def place(batches: Any) -> Any:
        for batch in batches:
            placed.append(batch)
            yield batch

    for more in ({}, {"replica": 1, "replicas": 2}, *[{"num_workers": 1}] * (kind == "samples" and transform is None)):
        here, there = (made(dataset, **settings, **more, augment_on_device=late) for late in (False, True))
        for start in (0, 4):
            batches = zip(here.train.epoch(1, start), there.train.epoch(1, start, place=place), strict=True)
            for one, other in batches:
                assert all(map(torch.equal, tensors(one), tensors(other)))
    assert placed


@pytest.mark.parametrize("inner", [False, True])
def test_transforms_of_one_sample_are_refused_on_a_device(inner: bool, cli: Callable[..., Any]) -> None:
    both = (
        "{_target_: torchvision.transforms.v2.RandomHorizontalFlip}, {_target_: torchvision.transforms.v2.ColorJitter}"
    )
    both = f"{{_target_: lightkit.data.transforms.Views, augment: [{both}]}}" if inner else both
    done = cli("train", "data=digits", "model=cnn", *SHORT, f"data.augment=[{both}]", "data.augment_on_device=true")
    assert done.code == 2
    for text in ("data.augment: these transforms change one sample at a time", "RandomHorizontalFlip, ColorJitter"):
        assert text in done.err


def test_a_run_with_augmentation_on_the_device_has_the_same_bits(cli: Callable[..., Any], project: Path) -> None:
    augment = "data.augment=[{_target_: lightkit.data.transforms.RandomFlip}]"
    common = ("train", "data=digits", "model=cnn", *SHORT, augment, "data.mixup.alpha=0.2")
    for name in ("false", "true"):
        done = cli(*common, f"data.augment_on_device={name}", f"hydra.run.dir={project / name}")
        assert done.code == 0, done.err
    one, other = (read_weights(project / name).state.values() for name in ("false", "true"))
    assert all(map(torch.equal, one, other))


def test_what_a_sample_becomes_depends_on_its_place_alone() -> None:
    transform, x = PerSample(noisy, "data.augment[0]"), torch.zeros(6, 2)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    whole = transform(x, SampleRandom(7, torch.arange(6)))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    parts = [transform(x[:2], SampleRandom(7, torch.arange(2))), transform(x[2:], SampleRandom(7, torch.arange(2, 6)))]
    assert torch.equal(whole, torch.cat(parts))
    assert len(set(whole[:, 0].tolist())) == 6
    assert not torch.equal(whole, transform(x, SampleRandom(8, torch.arange(6))))


def test_transforms_that_follow_one_another_give_what_each_gives_of_a_batch() -> None:
    def turned(image: torch.Tensor) -> torch.Tensor:
        return image.T if torch.rand(()) < 0.5 else image

    def laid(image: torch.Tensor) -> torch.Tensor:
        assert image.is_contiguous()
        return noisy(image)

    def of_a_batch(x: torch.Tensor, random: SampleRandom) -> torch.Tensor:
        return x + random.uniform()

    flip, x, places = RandomFlip(), torch.arange(200.0).reshape(8, 5, 5), torch.arange(3, 11)
    chain, *kept, last = as_transforms([turned, laid, flip, of_a_batch, noisy])
    assert kept == [flip, of_a_batch]
    expected = PerSample(turned, "data.augment[0]")(x, SampleRandom(7, places))
    expected = PerSample(laid, "data.augment[1]")(expected, SampleRandom(7, places))
    assert torch.equal(chain(x, SampleRandom(7, places)), expected)
    alone = PerSample(noisy, "data.augment[4]")(x, SampleRandom(7, places))
    assert torch.equal(last(x, SampleRandom(7, places)), alone)


def test_of_transforms_that_follow_one_another_the_one_at_fault_is_named() -> None:
    def crop(image: torch.Tensor) -> torch.Tensor:
        return image[: int(torch.randint(1, 8, ()))]

    def broken(image: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    x, places = torch.zeros(20, 9), SampleRandom(7, torch.arange(20))
    for transforms, key in (([noisy, crop, noisy], "data.augment[1]"), ([noisy, noisy, broken], "data.augment[2]")):
        (chain,) = as_transforms(transforms)
        with pytest.raises(UserError, match=re.escape(key)):
            chain(x, places)
