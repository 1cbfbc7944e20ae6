"""Which folders of images are splits and which are classes, and that a split is never learnt as a class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightkit.data.images import ImageFolder
from tests.conftest import Outcome
from tests.refused import refused

Image = pytest.importorskip("PIL.Image")


def place(root: Path, *folders: str) -> str:
    """Make folders with images; one that ends in a slash stays empty."""
    for number, folder in enumerate(folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(0 if folder.endswith("/") else 2):
            picture = np.full((8, 8, 3), 20 * number + i, dtype=np.uint8)
            Image.fromarray(picture).save(root / folder / f"{i}.png")
    return str(root)


def both(*splits: str) -> list[str]:
    return [f"{split}/{name}" for split in splits for name in ("cat", "dog")]


@pytest.mark.parametrize(
    ("folders", "chosen", "classes", "expected"),
    [
        (both("train", "validation"), None, "cat dog", {"train": 4, "val": 4}),
        (both("training", "test"), None, "cat dog", {"train": 4, "test": 4}),
        (both("Train", "VALID", "Test"), None, "cat dog", {"train": 4, "val": 4, "test": 4}),
        (both("test", "dev", "train"), None, "cat dog", {"train": 4, "val": 4, "test": 4}),
        (both("train"), None, "cat dog", {"train": 4}),
        (["cat/images", "dog/images"], None, "cat dog", {}),
        (["cat", "cat/more", "dog/more", "dog/most"], None, "cat dog", {}),
        (["cat/old", "cat/new", "dog"], None, "cat dog", {}),
        (["cat/a", "cat/b", "dog/c", "dog/d"], None, "cat dog", {}),
        (["cat", "dog", ".git", ".cache/train"], None, "cat dog", {}),
        ([*both("train", "test"), "__MACOSX/", "notes/"], None, "cat dog", {"train": 4, "test": 4}),
        ([*both("train", "val"), "train/cow"], None, "cat cow dog", {"train": 6, "val": 4}),
        (both("A", "B"), {"train": "B", "Valid": "A"}, "cat dog", {"train": 4, "val": 4}),
        (both("A", "B"), {"train": "A"}, "cat dog", {"train": 4}),
        (both("A", "B"), {}, "A B", {}),
    ],
    ids=str,
)
def test_splits_are_never_classes(
    tmp_path: Path, folders: list[str], chosen: Any, classes: str, expected: dict[str, int]
) -> None:
    data = ImageFolder(place(tmp_path, *folders), 8, split_folders=chosen)
    assert data.classes == (*classes.split(),)
    assert {name: len(rows) for name, rows in data.splits.items()} == expected
    for name, rows in data.splits.items() if chosen is None else ():
        assert {data.files[row].parts[-3].lower()[:2] for row in rows.tolist()} <= {name[:2], "de"}


@pytest.mark.parametrize(
    ("folders", "text"),
    [
        (both("A", "B"), "its folders (A, B) all hold the same folders (cat, dog) … train: A, val: B … ={} where"),
        (both("a", "b", "c", "d"), "(a, b, c, …)"),
        ([*both("known", "new")[:-1], "known/cow"], "its folders (known, new) all hold"),
        (both("cat", "dog"), "its folders (cat, dog) all hold"),
        ([f"{name}/{split}" for name in ("cat", "dog") for split in ("train", "test")], "hold the same folders"),
        ([f"{part}/{own}" for part in ("train", "test") for own in both("here", "there")], "(here, there) all hold"),
        (both("val", "validation", "train"), "two folders for the val split … val and validation"),
        (both("Train", "train"), "two folders for the train split"),
        (both("test"), "no folder to train on … one named train"),
        (both("val", "test"), "no folder to train on"),
        ([*both("train", "test"), "unlabeled"], "beside other folders … {train: train, test: test}' leaves … ={}"),
        (["cat", "dog", "train"], "beside other folders … cat, dog … ={}"),
        (["cat", "dog", "test"], "beside other folders … put the class folders into one named train"),
        ([*both("train"), "cat", "dog"], "beside other folders"),
        (["train", "test", "val"], "holds no class folders"),
        (["train"], "holds no class folders"),
        ([*both("train", "val"), "val/cow", "val/ox"], "a class that the training part lacks … cow … ox … 2 prob"),
        ([*both("train", "val"), "val/Cat/"], "a class that the training part lacks … nearest: cat"),
        (["cat", "dog", "cow/", "ox/"], "a class folder holds no images … cow … ox … 2 problems"),
        (["cat", "dog", "cow/.hidden"], "a class folder holds no images"),
        (both("test_set", "train_set"), "train: train_set, test: test_set"),
        ({"tain": "A", "val": "C"}, "no such split … nearest: train … has no such folder … 'C' … choices:  A, B"),
        ({"val": "A"}, "no folder to train on"),
        ({"train": "A", "training": "B"}, "two folders for the train split"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_told_is_asked(tmp_path: Path, folders: Any, text: str) -> None:
    chosen, folders = (folders, both("A", "B")) if isinstance(folders, dict) else (None, folders)
    refused(lambda: ImageFolder(place(tmp_path, *folders), 8, split_folders=chosen), text)


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    root = place(tmp_path, "cat", "dog", "dog/.trash", "dog/x.png")
    (tmp_path / "cat" / "._0.png").write_text("of another system")
    assert [file.name for file in ImageFolder(root, 8).files] == ["0.png", "1.png", "0.png", "1.png", "0.png", "1.png"]


def test_the_command_asks(cli: Callable[..., Outcome], project: Path) -> None:
    place(project / "other", *both("A", "B"))
    done = cli("train", "data=image_folder", "data.dataset.size=8", "data.dataset.root=other")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert "data.dataset.split_folders={train: A, val: B}" in done.err
