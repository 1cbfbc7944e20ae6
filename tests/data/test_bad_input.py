"""Settings and data that cannot be meant are refused by the part itself, which names the argument and the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightkit.data import DataInfo, TensorData, build_data, tables
from lightkit.data import transforms as T
from lightkit.data.normalize import fit
from lightkit.data.prepare import Mixup
from lightkit.data.shapes import Shapes
from lightkit.data.sources import SampleData, as_source
from lightkit.data.splits import SplitSpec, split_rows
from lightkit.data.text import Text
from lightkit.data.torchvision_sets import torchvision_dataset
from tests.data.pictures import in_memory, make
from tests.data.test_sources import Rows
from tests.data.test_splits import draw
from tests.refused import refused

X, Y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
SAMPLE = torch.zeros(2, 3)
THREE = DataInfo("multiclass", (2,), 3)
CLASSES, WINDOWS = DataInfo("multiclass", (3,), 4), DataInfo("language_modeling", (8,), 5)


def put(values: Tensor, row: int, value: float) -> Tensor:
    values = values.clone()
    values[row] = value
    return values


def labels(x: Tensor, y: Tensor, task: str, outputs: int) -> Any:
    return TensorData(x, y, DataInfo(task, (2,), outputs))


ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: draw(by="fole"), "split.by: not a way to split … nearest: fold, file"),
    (lambda: draw(val=-0.1), "split.val: not a share"),
    (lambda: draw(test=1.0), "split.test: not a share"),
    (lambda: draw(val=float("nan")), "split.val: not a share"),
    (lambda: draw(val=0.5, test=0.5), "val and test leave no training rows"),
    (lambda: draw(by="fold", folds=1), "too few folds"),
    (lambda: draw(by="fold", fold=5), "there is no such fold … 0 to 4"),
    (lambda: draw(by="fold", fold=-1), "there is no such fold"),
    (lambda: draw(by="fold", folds=24), "class 2 has too few rows for 24 folds"),
    (lambda: draw(limit=0), "training needs a row"),
    (lambda: draw(per_class=0), "split.per_class: training needs a row"),
    (lambda: draw(None, per_class=3), "no classes to count by"),
    (lambda: draw(by="file"), "brings no splits"),
    (lambda: draw(val=0.001), "split.val: the val split is empty"),
    (lambda: draw(None, by="stratified"), "only classes can be stratified"),
    (lambda: split_rows(SplitSpec("stratified"), 20, strata=torch.arange(20) // 18), "class 1 has too few rows for 3"),
    (lambda: split_rows(SplitSpec("fold"), 3), "fewer rows than folds"),
    (lambda: split_rows(SplitSpec(val=0.5), 4, given={"test": [2, 3]}), "the train split is empty"),
    (lambda: make(in_memory(), batch_size=0), "batch_size: too small"),
    (lambda: make(in_memory(), eval_batch_size=0), "eval_batch_size: too small"),
    (lambda: make(in_memory(), num_workers=-1), "num_workers: too small"),
    (lambda: make(in_memory(), prefetch_factor=0), "prefetch_factor: too small"),
    (lambda: make(in_memory(), timeout_seconds=-1), "timeout_seconds: too small"),
    (lambda: make(in_memory(), batch_size=42, drop_last=True), "no batch is left with drop_last"),
    (lambda: Mixup(0.0, seed=0, info=CLASSES), "mixup.alpha: not a parameter"),
    (lambda: Mixup(1.0, 1.5, seed=0, info=CLASSES), "mixup.probability: not a share"),
    (lambda: Mixup(1.0, seed=0, info=WINDOWS), "language_modeling targets cannot be mixed"),
    (lambda: Mixup(None, cutmix_alpha=0.0, seed=0, info=CLASSES), "mixup.cutmix_alpha: not a parameter"),
    (lambda: Mixup(None, 1, 1.0, 2, seed=0, info=CLASSES), "mixup.switch_probability: not a share"),
    (lambda: Mixup(0.2, cutmix_alpha=1.0, seed=0, info=CLASSES), "CutMix cuts … channels × height × width"),
    (lambda: draw(val_limit=0), "split.val_limit: an evaluation needs a row"),
    (lambda: fit("standart", [torch.zeros(4, 3)]), "not a way to scale … nearest: standard"),
    (lambda: fit("image", [torch.zeros(4, 3)]), "these inputs are not images"),
    (lambda: fit("standard", [torch.zeros(4, 3).long()]), "not numbers to scale"),
    (lambda: T.RandomShift(-1), "pixels: out of range"),
    (lambda: T.RandomAffine(200), "degrees: out of range … 0 to 180"),
    (lambda: T.RandomErasing(low=0.5, high=0.4), "low: out of range"),
    (lambda: T.FeatureDropout(2), "probability: out of range"),
    (lambda: T.Brightness(-1), "strength: out of range"),
    (lambda: Shapes(4), "size: out of range … 8 to 4096"),
    (lambda: Shapes(train=0), "train: out of range"),
    (lambda: Shapes(channels=2), "channels: out of range … 1 or 3"),
    (lambda: Shapes(distractors=-1), "distractors: out of range"),
    (lambda: Shapes(classes=["ring", "rung"]), "no such shape … ring"),
    (lambda: Shapes(classes=["ring", "ring"]), "a shape twice"),
    (lambda: tables.diabetes(target_scale=0.0), "target_scale: the target's unit"),
    (lambda: tables.diabetes(target_scale=float("nan")), "target_scale: the target's unit"),
    (lambda: tables.digits(classes=[3]), "classes: not classes of digits"),
    (lambda: tables.digits(classes=[3, 10]), "classes: not classes of digits"),
    (lambda: torchvision_dataset("CIFR10", "."), "no such data set … nearest: CIFAR10"),
    (lambda: torchvision_dataset("CIFAR10", "/none"), "root: CIFAR10 cannot be loaded … download=true"),
    (lambda: torchvision_dataset("FakeData", options={"sizes": 3}), "options: FakeData does not take these arguments"),
    (lambda: DataInfo("multiclas", (2,), 3), "not a kind of task … nearest: multiclass"),
]
CONTENT: list[tuple[Callable[[], Any], str]] = [
    (lambda: TensorData(X, Y[:4]), "inputs and targets differ in number"),
    (lambda: TensorData(X[:0], Y[:0]), "there are no rows"),
    (lambda: TensorData(put(X, 3, torch.nan), Y), "row 3 of the inputs holds nan, element (0,)"),
    (lambda: TensorData(put(X, 5, torch.inf), Y), "row 5 of the inputs holds inf"),
    (lambda: TensorData(torch.tensor([[torch.inf, -torch.inf]]), torch.zeros(1)), "row 0"),
    (lambda: TensorData(X, put(Y.float(), 2, torch.nan)), "row 2 of the targets holds nan"),
    (lambda: TensorData(X, put(Y, 1, -1)), "the label of row 1 is out of range … 0 to 2 … received: -1"),
    (lambda: TensorData(X, put(Y, 4, 3), THREE), "the label of row 4 is out of range"),
    (lambda: TensorData(X, Y.float(), THREE), "classes are whole numbers"),
    (lambda: labels(X, Y.float(), "binary", 1), "row 2 has a label other than 0 and 1"),
    (lambda: labels(X, put(torch.ones(6, 2), 1, 0.5), "multilabel", 2), "row 1 has a label other than 0 and 1"),
    (lambda: build_data(dataset=TensorData(X, Y * 0), split={}), "there is one class only … 2 classes or more"),
    (lambda: as_source(object()), "not a data set … 'object'"),
    (lambda: as_source(Rows([])), "the data set is empty"),
    (lambda: as_source(Rows([(SAMPLE, 0)] * 10_001)), "too many to read"),
    (lambda: as_source(Rows([(SAMPLE, 0)] * 3, targets=[0, 1, 2], classes=["a", "b"])), "the label of row 2 is out of"),
    (lambda: make(SampleData(Rows([{"x": X}] * 41)), normalize="standard"), "only pairs of input and target"),
]
TEXTS = [
    ({"path": "/no/such"}, "path: there is no such file or folder"),
    ({"pattern": "*.none"}, "pattern: no file in"),
    ({"context_length": 0}, "context_length: too small"),
    ({"stride": 0}, "stride: too small"),
    ({"max_chars": 0}, "max_chars: too small"),
    ({"val": 0.5, "test": 0.5}, "no text is left to train on"),
    ({"context_length": 100}, "the val part is shorter than one window"),
    ({"min_count": 10_000}, "no character is that frequent"),
    ({"vocabulary": ""}, "vocabulary: no character is in it"),
    ({"vocabulary": "ascii", "min_count": 2}, "min_count: a given vocabulary does not depend on"),
    ({"texts": {"a": ""}}, "texts: there is no text"),
]


@pytest.mark.parametrize(("making", "text"), ARGUMENTS + CONTENT, ids=[text for _, text in ARGUMENTS + CONTENT])
def test_refused(making: Callable[[], Any], text: str) -> None:
    refused(making, text)


@pytest.mark.parametrize(("settings", "text"), TEXTS)
def test_refused_texts(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij" * 80 + "é" * 100 + "x" * 100, encoding="utf-8")
    path = tmp_path if "pattern" in settings else tmp_path / "a.txt"
    refused(lambda: Text(**{"path": str(path), **settings}), text)


def test_refused_files_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 10)
    refused(lambda: Text(str(tmp_path / "a.bin")), "path: a file holds NUL bytes … a.bin")
    (tmp_path / "a.txt").touch()
    refused(lambda: Text(str(tmp_path / "a.txt")), "there is no text")
