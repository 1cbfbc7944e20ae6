"""Image files that cannot be read are found before training, all of them, and may be left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightkit.common.errors import UserError
from lightkit.data import images
from lightkit.data.images import ImageFolder, unreadable
from tests.conftest import Outcome

Image = pytest.importorskip("PIL.Image")
KINDS = ("jpg", "png", "gif", "bmp", "webp", "tif")
DAMAGED = ["test/cat/0.png", "train/cat/1.png", "val/dog/2.png"]


def picture(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(levels).save(path)
    return path


@pytest.fixture
def photos(project: Path) -> Path:
    for part, count in (("train", 8), ("val", 4), ("test", 4)):
        for number in range(count):
            for kind in ("cat", "dog"):
                picture(project / "photos" / part / kind / f"{number}.png", number)
    for name in DAMAGED:
        path = project / "photos" / name
        path.write_bytes(path.read_bytes()[:300])
    return project / "photos"


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_pass_and_others_are_found(tmp_path: Path, kind: str) -> None:
    whole = picture(tmp_path / f"whole.{kind}")
    content = whole.read_bytes()
    cut, empty, text = (tmp_path / f"{name}.{kind}" for name in ("cut", "empty", "text"))
    cut.write_bytes(content[: len(content) // 8 if kind in ("bmp", "tif", "webp") else len(content) // 2])
    empty.touch()
    text.write_text("<html>not found</html>")
    found = unreadable([whole, cut, empty, text])
    assert [path.stem for path in found] == (["empty", "text"] if kind in ("bmp", "tif") else ["cut", "empty", "text"])


def test_a_jpeg_with_something_behind_its_end_is_whole(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpg")
    path.write_bytes(path.read_bytes() + bytes(10_000))
    assert unreadable([path]) == {}


def test_a_changed_byte_is_found_where_files_are_not_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = picture(tmp_path / "a.png")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))
    assert [*unreadable([path])] == [path]
    monkeypatch.setattr(images, "MOST_VERIFIED", 0)
    assert unreadable([path]) == {}


def test_all_are_in_one_message_those_of_val_and_test_too(photos: Path) -> None:
    with pytest.raises(UserError) as caught:
        ImageFolder(str(photos), 8)
    message = str(caught.value)
    assert "root: 3 of 32 image files cannot be read" in message
    assert all(name in message for name in DAMAGED)
    assert "data.dataset.on_error=skip" in message


def test_a_class_of_which_nothing_can_be_read_is_refused(photos: Path) -> None:
    for path in (photos / "train" / "dog").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="no image of class 'dog' can be read"):
        ImageFolder(str(photos), 8, on_error="skip")
    with pytest.raises(UserError, match=r"on_error: unknown[\s\S]*error, skip"):
        ImageFolder(str(photos), 8, on_error="ignore")


def test_what_is_left_out_is_told_kept_and_left_out_by_a_resume(cli: Callable[..., Outcome], photos: Path) -> None:
    asked = ("data=image_folder", "data.dataset.root=photos", "data.dataset.size=8", "data.num_workers=0")
    done = cli("train", *asked, "model=mlp", "trainer.epochs=1", "name=pets", "device=cpu")
    assert done.code == 2
    assert all(name in done.err for name in DAMAGED)
    assert not [*photos.parent.glob("outputs/**/rows.npz")]
    done = cli("train", *asked, "data.dataset.on_error=skip", "model=mlp", "trainer.epochs=1", "name=pets")
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
