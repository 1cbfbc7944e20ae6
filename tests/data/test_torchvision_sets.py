"""Data sets of torchvision, in memory and read one by one."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import TensorData, build_data
from lightkit.data.torchvision_sets import torchvision_dataset


def cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CIFAR10 of 20 training and 10 test images in the files torchvision expects."""
    datasets = pytest.importorskip("torchvision.datasets")
    base = root / "cifar-10-batches-py"
    base.mkdir()
    random = np.random.default_rng(0)
    for name, count in (("data_batch_1", 20), ("test_batch", 10)):
        content: Any = {
            "data": random.integers(0, 256, (count, 3072), dtype=np.uint8),
            "labels": [i % 10 for i in range(count)],
        }
        (base / name).write_bytes(pickle.dumps(content))
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {i}" for i in range(10)]}))
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": None})


def test_torchvision_set_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar(tmp_path, monkeypatch)
    data = torchvision_dataset("CIFAR10", str(tmp_path))
    assert isinstance(data, TensorData)
    assert (data.x.dtype, tuple(data.x.shape)) == (torch.uint8, (30, 3, 32, 32))
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 20, "test": 10}
    assert data.info.class_names[3] == "class 3"
    resized = torchvision_dataset("CIFAR10", str(tmp_path), size=8)
    image, target = resized[29]
    assert (tuple(image.shape), target, len(resized)) == ((3, 8, 8), 9, 30)
    made = build_data(dataset=resized, split={"by": "stratified", "val": 0}, normalize="image")
    assert sum(len(y) for _, y in made.train.epoch(0)) == 20


def test_torchvision_set_read_one_by_one() -> None:
    pytest.importorskip("torchvision")
    data = torchvision_dataset("FakeData", options={"size": 12, "image_size": [3, 9, 9], "num_classes": 4})
    made = build_data(dataset=data, split={"val": 0.0}, batch_size=4)
    x, y = next(made.train.epoch(0))
    assert (tuple(x.shape), y.dtype, made.info.num_classes) == ((4, 3, 9, 9), torch.int64, 4)


def test_torchvision_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    with pytest.raises(UserError, match=r"no such data set[\s\S]*nearest: CIFAR10"):
        torchvision_dataset("CIFR10", str(tmp_path))
    with pytest.raises(UserError, match=r"root: CIFAR10 cannot be loaded[\s\S]*download=true"):
        torchvision_dataset("CIFAR10", str(tmp_path))
    with pytest.raises(UserError, match=r"options: FakeData does not take these arguments"):
        torchvision_dataset("FakeData", options={"sizes": 3})

    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(datasets.CIFAR10, "download", offline)
    with pytest.raises(UserError, match=r"CIFAR10 cannot be downloaded: no route to host[\s\S]*check the network"):
        torchvision_dataset("CIFAR10", str(tmp_path), download=True)


def test_a_failed_download_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    root = tmp_path / "datasets"

    def offline(self: Any) -> None:
        (root / "CIFAR10" / "raw").mkdir(parents=True)
        raise RuntimeError("Error downloading it:\nTried https://here, got:\n<urlopen error no name>\n")

    monkeypatch.setattr(datasets.CIFAR10, "download", offline)
    with pytest.raises(UserError, match=r"CIFAR10 cannot be downloaded: urlopen error no name\n"):
        torchvision_dataset("CIFAR10", str(root), download=True)
    assert not root.exists()
    (root / "mine").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot be downloaded"):
        torchvision_dataset("CIFAR10", str(root), download=True)
    assert [path.name for path in root.iterdir()] == ["mine"]


def test_torchvision_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchvision", None)
    with pytest.raises(UserError, match=r"torchvision is not installed[\s\S]*lightkit\[vision\]"):
        torchvision_dataset("CIFAR10")
