"""Data sets of torchvision, in memory and read one by one."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.data import TensorData, build_data
from lightkit.data.torchvision_sets import torchvision_dataset
from tests.refused import refused

datasets = pytest.importorskip("torchvision.datasets")


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A CIFAR10 of 20 training and 10 test images in the files torchvision expects."""
    base = tmp_path / "cifar-10-batches-py"
    base.mkdir()
    for name, count in (("data_batch_1", 20), ("test_batch", 10)):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)
        (base / name).write_bytes(pickle.dumps({"data": pixels, "labels": [i % 10 for i in range(count)]}))
    (base / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {i}" for i in range(10)]}))
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(datasets.CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": None})
    return str(tmp_path)


def test_torchvision_set_in_memory(cifar: str) -> None:
    data = torchvision_dataset("CIFAR10", cifar)
    assert isinstance(data, TensorData)
    assert (data.x.dtype, tuple(data.x.shape)) == (torch.uint8, (30, 3, 32, 32))
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 20, "test": 10}
    assert data.info.class_names[3] == "class 3"
    resized = torchvision_dataset("CIFAR10", cifar, size=8)
    image, target = resized[29]
    assert (tuple(image.shape), target, len(resized)) == ((3, 8, 8), 9, 30)
    made = build_data(dataset=resized, split={"by": "stratified", "val": 0}, normalize="image")
    assert sum(len(y) for _, y in made.train.epoch(0)) == 20


def test_torchvision_set_read_one_by_one() -> None:
    data = torchvision_dataset("FakeData", options={"size": 12, "image_size": [3, 9, 9], "num_classes": 4})
    made = build_data(dataset=data, split={"val": 0.0}, batch_size=4)
    x, y = next(made.train.epoch(0))
    assert (tuple(x.shape), y.dtype, made.info.num_classes) == ((4, 3, 9, 9), torch.int64, 4)


def test_a_failed_download_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, error = tmp_path / "datasets", OSError("no route to host")

    def offline(self: Any) -> None:
        (root / "CIFAR10" / "raw").mkdir(parents=True)
        raise error

    def download() -> Any:
        return torchvision_dataset("CIFAR10", str(root), download=True)

    monkeypatch.setattr(datasets.CIFAR10, "download", offline)
    refused(download, "CIFAR10 cannot be downloaded: no route to host … check the network")
    assert not root.exists()
    (root / "mine").mkdir(parents=True)
    error = RuntimeError("Error downloading it:\nTried https://here, got:\n<urlopen error no name>\n")  # type: ignore
    refused(download, "CIFAR10 cannot be downloaded: urlopen error no name\n")
    assert [path.name for path in root.iterdir()] == ["mine"]


def test_torchvision_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision", "torchvision.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    refused(lambda: torchvision_dataset("CIFAR10"), "torchvision is not installed … lightkit[vision]")
