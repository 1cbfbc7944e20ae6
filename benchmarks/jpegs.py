"""JPEG files and three ways to read and augment them: lightkit's, torchvision's in a DataLoader, and timm's loader.

All hand over batches of `(3, size, size)` floats from 0 to 1. The DataLoader's data set decodes with Pillow, cuts the
middle square and scales it, as lightkit's does. timm takes part twice: with the same middle square, and the same shift,
before its own transforms, which is the work of the DataLoader; and as it comes, where it cuts at random out of the
whole picture and so scales once. So does lightkit with its own crop; with torchvision's, both scale twice, and timm is
no bar. CPU time is that of the process and its workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from benchmarks.harness import Bar, check_same, interleave, judge, look, show
from lightkit.data import Data, build_data
from lightkit.data.crops import RandomResizedCrop
from lightkit.data.images import ImageFolder
from lightkit.data.transforms import RandomFlip, RandomShift

LIGHTKIT, TORCH, TIMM, TIMM_ALONE = "lightkit", "DataLoader", "timm", "timm as it comes"
FILES, BATCH, SIZE = 2000, 50, 224
WORKERS = (0, 1, 2)
_CLASSES = 10
_WIDTH, _HEIGHT = 320, 240
_SHIFT = 4


class Augmentation(NamedTuple):
    """What is done to training images.

    Args:
        title: What it is.
        ours: Entries of `data.augment`.
        theirs: Transforms of one sample that do the same.
        timms: Arguments of `timm.data.create_loader` that come closest.
        before: What of `theirs` timm does not have.
        peers: Those beside the DataLoader that lightkit is to be as fast as.
    """

    title: str
    ours: Sequence[Any]
    theirs: Sequence[Any]
    timms: dict[str, Any]
    before: Sequence[Any] = ()
    peers: Sequence[str] = (TIMM, TIMM_ALONE)


def augmentations(size: int) -> list[Augmentation]:
    """The cases: none, lightkit's own beside torchvision's twice, torchvision's on both sides."""
    own = RandomResizedCrop(size, (0.5, 1.0))
    colour = [v2.RandomResizedCrop(size, (0.5, 1.0)), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)]
    shift = [v2.RandomCrop(size, padding=_SHIFT), v2.RandomHorizontalFlip()]
    cropped = {"is_training": True, "scale": (0.5, 1.0), "color_jitter": 0.2}
    moved = {"is_training": True, "train_crop_mode": "rkrr", "scale": (1, 1), "ratio": (1, 1), "color_jitter": None}
    return [
        Augmentation("resize", (), (), {"crop_pct": 1.0}),
        Augmentation("resize, shift, flip", (RandomShift(_SHIFT), RandomFlip()), shift, moved, shift[:1]),
        Augmentation("resize, crop, flip, colour", [own, *colour[1:]], colour, cropped),
        Augmentation("the same with torchvision's crop", colour, colour, cropped, peers=()),
    ]


def write(folder: Path, files: int) -> None:
    """Write smooth random images into class folders below `folder`."""
    generator = np.random.default_rng(0)
    for number in range(files):
        target = folder / str(number % _CLASSES)
        target.mkdir(exist_ok=True)
        small = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC).save(target / f"{number:04d}.jpg", quality=90)


def middle_square(image: Image.Image, size: int) -> Image.Image:
    """Cut the middle square out of a picture and scale it."""
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))


class Files(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """The same files, as a data set for a DataLoader is written.

    Args:
        folder: Where `write` put them.
        size: Pixels a side.
        transforms: Of one sample.
    """

    def __init__(self, folder: Path, size: int, transforms: Sequence[Any]) -> None:
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size
        self.transform = v2.Compose(
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), *transforms, v2.ToPureTensor()]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = self.files[index]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        return self.transform(middle_square(image, self.size)), int(file.parent.name)


def build_ours(folder: Path, size: int, augment: Sequence[Any], *, batch: int, workers: int) -> Data:
    """Lightkit's loaders over all files."""
    everything = {"by": "ordered", "val": 0.0, "test": 0.0}
    data = ImageFolder(str(folder), size)
    return build_data(dataset=data, split=everything, augment=augment, batch_size=batch, num_workers=workers)


def build_theirs(
    folder: Path, size: int, transforms: Sequence[Any], *, batch: int, workers: int
) -> torch.utils.data.DataLoader[tuple[Tensor, int]]:
    """A DataLoader over all files, its processes kept between epochs as lightkit's are."""
    data = Files(folder, size, transforms)
    return torch.utils.data.DataLoader(
        data, batch_size=batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def build_timms(
    folder: Path, size: int, arguments: dict[str, Any], *, batch: int, workers: int, before: Sequence[Any] = ()
) -> Iterable[Any]:
    """Timm's loader over all files; its processes stay alive too.

    Args:
        folder: Where `write` put them.
        size: Pixels a side.
        arguments: Of `create_loader`.
        batch: Samples of a batch.
        workers: Processes.
        before: Transforms of a picture before its own.
    """
    from timm.data import ImageDataset, create_loader

    scaling = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    files = ImageDataset(str(folder))
    loader: Iterable[Any] = create_loader(
        files, (3, size, size), batch, num_workers=workers, device=torch.device("cpu"), **scaling, **arguments
    )
    files.transform = v2.Compose([*before, files.transform])
    return loader


def measure_case(folder: Path, case: Augmentation, *, workers: int, rounds: int) -> bool:
    """Measure one way to augment JPEG files; returns whether the bar holds."""
    settings = {"batch": BATCH, "workers": workers}
    data = build_ours(folder, SIZE, case.ours, **settings)
    torchs = build_theirs(folder, SIZE, case.theirs, **settings)
    alone = build_timms(folder, SIZE, case.timms, **settings)
    before = [partial(middle_square, size=SIZE), *case.before]
    timms = build_timms(folder, SIZE, case.timms, **settings, before=before)
    epochs = count()
    sources = {
        LIGHTKIT: lambda: data.train.epoch(next(epochs)),
        TORCH: lambda: torchs,
        TIMM: lambda: timms,
        TIMM_ALONE: lambda: alone,
    }
    results = interleave({name: partial(look, source) for name, source in sources.items()}, rounds=rounds)
    data.close()
    check_same(results, samples=0)
    check_same({name: results[name] for name in (LIGHTKIT, TORCH, TIMM)}, mean=0.05)  # as it comes, timm pads nothing
    show(f"JPEG: {case.title}; workers: {workers}", results, TORCH, per=data.train.num_samples, unit="µs")
    bars = [Bar(LIGHTKIT, peer, 1.0, kind="cpu") for peer in case.peers]
    return judge(results, [Bar(LIGHTKIT, TORCH, 0.909, kind="cpu"), *bars])


def measure(*, rounds: int, batches: int) -> bool:
    """Measure all cases on at most so many batches of files; returns whether the bars hold."""
    held = []
    with TemporaryDirectory() as folder:
        write(Path(folder), min(FILES, batches * BATCH))
        for case in augmentations(SIZE):
            for workers in WORKERS:
                held.append(measure_case(Path(folder), case, workers=workers, rounds=rounds))
                print()
    return all(held)
