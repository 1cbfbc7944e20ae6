"""Image folders and torchvision's sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import build_data
from lightkit.data.images import ImageFolder

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat", "dog"]):
        (tmp_path / name / "more").mkdir(parents=True)
        for count in range(6):
            picture = np.full((10 + count, 14, 3), 50 * number + count, dtype=np.uint8)
            Image.fromarray(picture).save(tmp_path / name / ("more" if count % 2 else "") / f"{count}.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("workers", [0, 1])
def test_folders_are_classes(folder: Path, workers: int) -> None:
    data = build_data(
        dataset=ImageFolder(str(folder), 8), split={"by": "stratified", "val": 0.0, "test": 0.34},
        normalize="image", num_workers=workers, batch_size=4,
    )  # fmt: skip
    assert (data.info.class_names, data.info.input_shape) == (("cat", "dog"), (3, 8, 8))
    x, y = (torch.cat(parts) for parts in zip(*data.train.epoch(0), strict=True))
    data.close()
    assert sorted(y.tolist()) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert abs(float(x.mean())) < 1e-5
    assert x[y == 1].mean() > x[y == 0].mean()


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_image(tmp_path: Path, mode: str, channels: int) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (5, 9), (255, 255, 255)).convert(mode).save(tmp_path / "a" / "1.png")
    image, _ = ImageFolder(str(tmp_path), 4, channels)[0]
    assert torch.equal(image, torch.ones(channels, 4, 4))


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_levels_of_255(tmp_path: Path, channels: int) -> None:
    (tmp_path / "a").mkdir()
    shape = (16, 16, 3) if channels == 3 else (16, 16)
    levels = (
        np.random.default_rng(0).permutation(np.resize(np.arange(256, dtype=np.uint8), shape).ravel()).reshape(shape)
    )
    Image.fromarray(levels).save(tmp_path / "a" / "1.png")
    image, _ = ImageFolder(str(tmp_path), 16, channels)[0]
    expected = torch.from_numpy(levels.astype(np.float32) / np.float32(255)).reshape(16, 16, channels).permute(2, 0, 1)
    assert torch.equal(image, expected)
    assert image.is_contiguous()


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_image_is_named(folder: Path, workers: int) -> None:
    path, images = folder / "dog" / "0.png", ImageFolder(str(folder), 8)
    path.write_bytes(path.read_bytes()[:40])  # since it was looked at
    data = build_data(dataset=images, split={"val": 0, "test": 0}, num_workers=workers)
    with pytest.raises(UserError, match=r"data.dataset.root: the image cannot be read[\s\S]*dog/0.png"):
        list(data.train.epoch(0))
    data.close()


def test_bad_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        ImageFolder(str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"channels: not a number of channels"):
        ImageFolder(str(folder), channels=2)
    with pytest.raises(UserError, match=r"size: too small"):
        ImageFolder(str(folder), size=0)


def test_faults_in_the_folder_of_test_images_name_its_key(folder: Path, tmp_path: Path) -> None:
    test = tmp_path / "new"
    test.mkdir()
    (test / "0.png").write_bytes((folder / "dog" / "0.png").read_bytes())
    with pytest.raises(UserError, match=r"test_root: the folder holds no class folders[\s\S]*new/CLASS, any class"):
        ImageFolder(str(folder), test_root=str(test))
    (test / "owl").mkdir()
    with pytest.raises(UserError, match=r"test_root: .*new has a class that the training part lacks[\s\S]*'owl'"):
        ImageFolder(str(folder), test_root=str(test))
    (test / "owl").rename(test / "dog")
    with pytest.raises(UserError, match=r"test_root: a class folder holds no images[\s\S]*new/dog"):
        ImageFolder(str(folder), test_root=str(test))
