"""Images in folders: what becomes of their pixels, and files that cannot be read, which are found before training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import images
from lightkit.data.images import ImageFolder, unreadable
from lightkit.data.reader import Faults
from tests.conftest import Outcome
from tests.refused import refused

Image = pytest.importorskip("PIL.Image")
DAMAGED = ["test/cat/0.png", "train/cat/1.png", "val/dog/2.png"]


def picture(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(levels).save(path)
    return path


def cut(path: Path, size: int = 300) -> Path:
    path.write_bytes(path.read_bytes()[:size])
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat", "dog"]):
        (tmp_path / name / "more").mkdir(parents=True)
        for count in range(6):
            levels = np.full((10 + count, 14, 3), 50 * number + count, dtype=np.uint8)
            Image.fromarray(levels).save(tmp_path / name / ("more" if count % 2 else "") / f"{count}.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    return tmp_path


@pytest.fixture
def photos(project: Path) -> Path:
    for part, count in (("train", 8), ("val", 4), ("test", 4)):
        for number in range(count):
            for kind in ("cat", "dog"):
                picture(project / "photos" / part / kind / f"{number}.png", number)
    for name in DAMAGED:
        cut(project / "photos" / name)
    return project / "photos"


@pytest.mark.parametrize("workers", [0, 1])
def test_folders_are_classes_and_a_file_damaged_since_is_named(folder: Path, made: Any, workers: int) -> None:
    files = ImageFolder(str(folder), 8)
    split = {"by": "stratified", "val": 0.0, "test": 0.34}
    data = made(files, split=split, normalize="image", num_workers=workers, batch_size=4)
    assert (data.info.class_names, data.info.input_shape) == (("cat", "dog"), (3, 8, 8))
    x, y = (torch.cat(parts) for parts in zip(*data.train.epoch(0), strict=True))
    assert sorted(y.tolist()) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert abs(float(x.mean())) < 1e-5
    assert x[y == 1].mean() > x[y == 0].mean()
    cut(folder / "dog" / "0.png", 40)
    with pytest.raises(UserError, match=r"data.dataset.root: the image cannot be read[\s\S]*dog/0.png"):
        list(made(files, num_workers=workers).train.epoch(0))


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_image(tmp_path: Path, mode: str, channels: int) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (5, 9), (255, 255, 255)).convert(mode).save(tmp_path / "a" / "1.png")
    image, _ = ImageFolder(str(tmp_path), 4, channels)[0]
    assert torch.equal(image, torch.ones(channels, 4, 4))


@pytest.mark.parametrize("shape", [(16, 16), (16, 16, 3)])
def test_pixels_are_levels_of_255(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "a").mkdir()
    levels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "a" / "1.png")
    channels = 3 if len(shape) == 3 else 1
    image, _ = ImageFolder(str(tmp_path), 16, channels)[0]
    shares = levels.astype(np.float32) / np.float32(255)
    assert torch.equal(image, torch.from_numpy(shares).reshape(16, 16, channels).permute(2, 0, 1))
    assert image.is_contiguous()


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_levels_of_16_bits_keep_their_range(tmp_path: Path, ending: str, channels: int) -> None:
    (tmp_path / "a").mkdir()
    levels = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    Image.fromarray(levels).save(tmp_path / "a" / f"1.{ending}")
    image, _ = ImageFolder(str(tmp_path), 16, channels)[0]
    assert torch.equal(image, torch.from_numpy(levels / np.float32(65535)).expand(channels, -1, -1))
    small, _ = ImageFolder(str(tmp_path), 4, channels)[0]
    assert 0.05 < float(small.min()) < 0.2
    assert 0.8 < float(small.max()) < 0.95


def test_large_jpeg_files_are_decoded_at_a_reduced_scale_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    small = np.random.default_rng(0).integers(0, 256, (5, 8, 3), dtype=np.uint8)
    Image.fromarray(small).resize((400, 250), 3).save(tmp_path / "a" / "0.jpg", quality=95)
    plain, draft = (ImageFolder(str(tmp_path), 60, draft=draft) for draft in (False, True))
    assert 0 < float((plain[0][0] - draft[0][0]).abs().mean()) < 0.01
    assert plain.info.fingerprint != draft.info.fingerprint
    (rows,) = draft.reader.read(tmp_path, 2, Faults())
    assert torch.equal(rows.inputs[0], draft[0][0])
    whole = [ImageFolder(str(tmp_path), 126, draft=draft)[0][0] for draft in (False, True)]
    assert torch.equal(*whole), "an image less than twice as large is decoded as it is"


def test_bad_folders(folder: Path, tmp_path: Path) -> None:
    root, test = str(folder), tmp_path / "new"
    refused(lambda: ImageFolder(str(tmp_path / "none")), "there is no such folder")
    refused(lambda: ImageFolder(root, channels=2), "channels: not a number of channels")
    refused(lambda: ImageFolder(root, size=0), "size: too small")
    refused(lambda: ImageFolder(root, on_error="ignore"), "on_error: unknown … error, skip")
    test.mkdir()
    (test / "0.png").write_bytes((folder / "dog" / "0.png").read_bytes())
    text = "test_root: the folder holds no class folders … new/CLASS, any class"
    refused(lambda: ImageFolder(root, test_root=str(test)), text)
    (test / "owl").mkdir()
    text = "test_root: … new has a class that the training part lacks … 'owl'"
    refused(lambda: ImageFolder(root, test_root=str(test)), text)
    (test / "owl").rename(test / "dog")
    refused(lambda: ImageFolder(root, test_root=str(test)), "test_root: a class folder holds no images … new/dog")


@pytest.mark.parametrize("kind", ["jpg", "png", "gif", "bmp", "webp", "tif"])
def test_whole_files_pass_and_others_are_found(tmp_path: Path, kind: str) -> None:
    whole, half, empty, text = (tmp_path / f"{name}.{kind}" for name in ("whole", "half", "empty", "text"))
    size = picture(whole).stat().st_size
    cut(picture(half), size // 8 if kind in ("bmp", "tif", "webp") else size // 2)
    empty.touch()
    text.write_text("<html>not found</html>")
    faults = unreadable([whole, half, empty, text])
    assert [path.stem for path in faults] == (
        ["empty", "text"] if kind in ("bmp", "tif") else ["half", "empty", "text"]
    )


def test_what_is_behind_the_end_does_no_harm_and_a_changed_byte_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer, changed = picture(tmp_path / "a.jpg"), picture(tmp_path / "a.png")
    longer.write_bytes(longer.read_bytes() + bytes(10_000))
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 255
    changed.write_bytes(bytes(content))
    assert [*unreadable([longer, changed])] == [changed]
    monkeypatch.setattr(images, "MOST_VERIFIED", 0)
    assert unreadable([longer, changed]) == {}


def test_all_are_in_one_message_and_a_class_of_which_nothing_can_be_read_is_refused(photos: Path) -> None:
    text = "root: 3 of 32 image files cannot be read … data.dataset.on_error=skip"
    refused(lambda: ImageFolder(str(photos), 8), " … ".join([text, *DAMAGED]))
    for path in (photos / "train" / "dog").iterdir():
        path.write_bytes(b"")
    refused(lambda: ImageFolder(str(photos), 8, on_error="skip"), "no image of class 'dog' can be read")


@pytest.mark.thorough(first=0)
def test_what_is_left_out_is_told_kept_and_left_out_by_a_resume(cli: Callable[..., Outcome], photos: Path) -> None:
    small = ["data=image_folder", "data.dataset.root=photos", "data.dataset.size=8", "data.num_workers=0", "model=mlp"]
    small += ["trainer.epochs=1", "device=cpu"]
    done = cli("train", *small)
    assert done.code == 2
    assert all(name in done.err for name in DAMAGED)
    assert not [*photos.parent.glob("outputs/**/rows.npz")]
    done = cli("train", *small, "data.dataset.on_error=skip")
    assert done.code == 0, done.err
    assert "3 of 32 image files are left out, they cannot be read" in done.out + done.err
    (folder,) = (path.parent for path in photos.parent.glob("outputs/**/rows.npz"))
    assert sorted(json.loads((folder / "left-out.json").read_text())) == DAMAGED
    assert cli("predict", str(folder)).code == 0
    head, first, *_ = (folder / "predictions-test.csv").read_text().splitlines()
    assert head.startswith("row,file,target,prediction,p(cat)")
    assert first.split(",")[1] == "test/cat/1.png"
    picture(photos / DAMAGED[1])
    done = cli("resume", str(folder), "trainer.epochs=2")
    assert done.code == 0, done.err
    assert "1 row is new and left out" in done.out + done.err
