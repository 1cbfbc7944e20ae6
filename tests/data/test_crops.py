"""Crops out of whole pictures: beside torchvision's and Pillow's, and the same bits however they are read."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.images import ImageFolder
from lightkit.data.sample_cache import keep_samples
from lightkit.data.shapes import Shapes
from lightkit.data.sources import as_source, seed_generators
from lightkit.data.transforms import RandomFlip
from tests.conftest import Outcome
from tests.data.pictures import WHOLE, in_memory, joined, same

Image = pytest.importorskip("PIL.Image")
v2 = pytest.importorskip("torchvision.transforms.v2")
RandomResizedCrop = import_module("lightkit.data.crops").RandomResizedCrop
FLIP, COLOUR = v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2)


@pytest.fixture
def photos(project: Path) -> Path:
    """Wide pictures, JPEG and PNG, bright on the left and on the right of a dark middle square."""
    for number in range(12):
        levels = np.random.default_rng(number).integers(0, 60, (24, 48, 3), dtype=np.uint8)
        levels[:, :12], levels[:, 36:] = 250, 200
        path = project / "photos" / "ab"[number % 2] / f"{number}.{'png' if number % 3 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(levels).save(path)
    return project / "photos"


def test_rectangles_are_those_of_torchvision() -> None:
    boxes = []
    for transform in (RandomResizedCrop(8, (0.1, 0.4)), v2.RandomResizedCrop(8, (0.1, 0.4))):
        torch.manual_seed(0)
        picture = torch.zeros(3, 60, 90, dtype=torch.uint8)
        boxes.append([transform.make_params([picture]) for _ in range(1000)])
    assert boxes[0] == boxes[1]
    areas = torch.tensor([box["height"] * box["width"] / 5400 for box in boxes[0]])
    assert 0.09 < areas.min() < areas.max() < 0.41
    assert areas.mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("mode", "channels", "ending"), [
    ("RGB", 3, "png"), ("RGB", 3, "jpg"), ("L", 3, "png"), ("P", 3, "png"), ("RGB", 1, "jpg"), ("I;16", 1, "png"),
])  # fmt: skip
@pytest.mark.parametrize("draft", [False, True])
def test_pixels_are_those_of_pillow_up_to_a_level(
    tmp_path: Path, mode: str, channels: int, ending: str, draft: bool
) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (61, 90, 3), dtype=np.uint8)
    image = Image.fromarray(levels[..., 0].astype(np.uint16) * 256 if mode == "I;16" else levels)
    for name in "ab":
        (tmp_path / name).mkdir()
        (image if mode == "I;16" else image.convert(mode)).save(tmp_path / name / f"0.{ending}")
    files, crop = ImageFolder(str(tmp_path), 12, channels, draft=draft), RandomResizedCrop(12, (0.1, 0.8))
    whole = Image.open(files.files[0])
    whole = Image.fromarray(np.asarray(whole).astype(np.float32)) if mode == "I;16" else whole
    whole = whole if mode == "I;16" else whole.convert("RGB" if channels == 3 else "L")
    for seed in range(5):
        seed_generators(seed)
        read, target = files.read_whole(0, crop)
        seed_generators(seed)
        top, left, height, width = crop.make_params([torch.zeros(1, 61, 90)]).values()
        part = np.asarray(whole.crop((left, top, left + width, top + height)).resize((12, 12), 2), np.float32)
        part = part.reshape(12, 12, channels).transpose(2, 0, 1) / (65535 if mode == "I;16" else 255)
        assert (target, read.shape) == (0, (channels, 12, 12))
        assert float((read - torch.from_numpy(part)).abs().max()) < 1.01 / 255


def test_they_are_cut_out_of_the_whole_picture_in_training_only(photos: Path, made: Any) -> None:
    data = made(ImageFolder(str(photos), 8), augment=[RandomResizedCrop(8, (0.05, 0.1), (1.0, 1.0))])
    seen = torch.cat([joined(data.train, epoch)[0] for epoch in range(4)])
    assert (seen > 0.9).float().mean() > 0.1
    middle = torch.stack([data.source[row][0] for row in range(12)])[..., 1:-1]
    assert float(middle.max()) < 0.4
    evaluated = torch.cat([x for x, _ in data.evaluation("train").epoch(0)])
    assert torch.equal(evaluated[..., 1:-1], middle)


@pytest.mark.thorough(first=2)
@pytest.mark.parametrize("rest", [(), (FLIP, COLOUR), (RandomFlip(),)], ids=["alone", "samples", "batches"])
def test_the_same_bits_however_they_are_read(photos: Path, made: Any, rest: Any) -> None:
    settings: dict[str, Any] = {"augment": [RandomResizedCrop(9), *rest], "normalize": "image"}
    plain = made(ImageFolder(str(photos), 8), **settings)
    expected = joined(plain.train, 1)
    assert expected[0].shape == (12, 3, 9, 9)
    assert not torch.equal(expected[0], joined(plain.train, 2)[0])
    ways: list[dict[str, Any]] = [{"num_workers": 2, "batch_size": 5}, {"batch_size": 1}]
    for more in ways if FLIP in rest else [*ways, {"augment_on_device": True}]:
        data = made(ImageFolder(str(photos), 8), **settings, **more)
        assert same(joined(data.train, 1), expected)
        assert same(joined(data.train, 1, 7), (expected[0][7:], expected[1][7:]))
    kept = keep_samples(as_source(ImageFolder(str(photos), 8)), "ram", "", settings["augment"])
    assert "RandomResizedCrop reads the files, so that those of training are decoded in each epoch" in kept.notes[-1]
    assert same(joined(made(kept, **settings).train, 1), expected)


class Own(ImageFolder):
    def __getitem__(self, row: int) -> Any:
        image, target = super().__getitem__(row)
        return image.flip(-1), target


def masks(_: Path) -> Any:
    rows = [(x, (x[0] > 0.5).long()) for x in torch.rand(6, 3, 16, 20, generator=torch.Generator().manual_seed(0))]
    return type("Masks", (list,), {"classes": ("none", "some")})(rows)


@pytest.mark.parametrize(("make", "before"), [
    (lambda _: in_memory(), ()),
    (masks, ()),
    (lambda _: Shapes(8, 12, 0, 0, cache=False), ()),
    (lambda photos: Own(str(photos), 8), ()),
    (lambda photos: ImageFolder(str(photos), 8), (FLIP,)),
], ids=["memory", "masks", "takes", "own", "second"])  # fmt: skip
def test_elsewhere_they_do_what_those_of_torchvision_do(
    photos: Path, made: Any, make: Callable[[Path], Any], before: Any
) -> None:
    found = [
        joined(made(make(photos), augment=[*before, crop(7, (0.2, 0.6))], batch_size=4).train, 1)
        for crop in (RandomResizedCrop, v2.RandomResizedCrop)
    ]
    assert same(*found)


def test_on_a_device_they_are_for_the_loader_and_others_of_one_sample_are_refused(photos: Path, made: Any) -> None:
    settings: dict[str, Any] = {"augment": [RandomResizedCrop(6), RandomFlip()], "normalize": "image"}
    here, there = (made(in_memory(), **settings, augment_on_device=late) for late in (False, True))
    assert same(joined(here.train, 0), joined(there.train, 0))
    for wrong in ([RandomResizedCrop(6), FLIP], [RandomFlip(), RandomResizedCrop(6)]):
        with pytest.raises(UserError, match="change one sample at a time"):
            build_data(dataset=in_memory(), split=WHOLE, augment=wrong, augment_on_device=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_wrong_is_named(photos: Path, made: Any, workers: int) -> None:
    files = ImageFolder(str(photos), 8)
    data = made(files, augment=[RandomResizedCrop(8, interpolation="lanczos")], num_workers=workers)
    data.train.prepare.augment[0].steps[0][0].antialias = False
    with pytest.raises(UserError, match=r"(?s)data.augment\[0\].*RandomResizedCrop failed on a sample \(3, 24, 48\)"):
        list(data.train.epoch(0))
    data.close()
    files.files[3].write_bytes(files.files[3].read_bytes()[:60])
    with pytest.raises(UserError, match=rf"(?s)the image cannot be read.*{files.files[3].name}"):
        list(made(files, augment=[RandomResizedCrop(8)], num_workers=workers).train.epoch(0))


def test_a_run_by_its_configuration(cli: Callable[..., Outcome], photos: Path) -> None:
    def train(options: str, *more: str) -> Outcome:
        augment = f"data.augment=[{{_target_: lightkit.data.crops.RandomResizedCrop, {options}}}]"
        short = (
            "model=cnn",
            "trainer.steps=2",
            "metrics=none",
            "data.num_workers=0",
            "logger.tensorboard.enabled=false",
        )
        return cli(
            "train", "data=image_folder", f"data.dataset.root={photos}", "data.dataset.size=8", augment, *short, *more
        )

    assert train("size: 8, scale: [0.5, 1.0]").code == 0
    wrong = train("sise: 8")
    assert wrong.code == 2
    assert "data.augment[0].sise" in wrong.err
