"""scikit-learn's bundled sets, read without scikit-learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightkit.data import build_data, tables
from tests.refused import refused


@pytest.mark.parametrize(
    ("mine", "name", "options", "divide"),
    [
        (tables.digits(image=False), "load_digits", {}, 16.0),
        (tables.breast_cancer(), "load_breast_cancer", {}, 1.0),
        (tables.wine(), "load_wine", {}, 1.0),
        (tables.diabetes(), "load_diabetes", {"scaled": False}, 1.0),
    ],
)
def test_equal_to_scikit_learn(mine: Any, name: str, options: dict[str, Any], divide: float) -> None:
    from sklearn import datasets

    theirs = getattr(datasets, name)(**options)
    x, y = theirs.data, theirs.target
    assert np.array_equal(mine.x.numpy(), (x / divide).astype(np.float32))
    assert np.array_equal(mine.y.numpy(), y.astype(mine.y.numpy().dtype))
    assert name == "load_digits" or mine.feature_names == tuple(map(str, theirs.feature_names))


@pytest.mark.thorough
def test_reading_does_not_import_scikit_learn(root: Path) -> None:
    code = "import sys; from lightkit.data import tables; tables.digits(); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize("make", [tables.digits, tables.digits_multilabel, tables.breast_cancer, tables.wine])
def test_stratified_splits_and_facts(make: Any) -> None:
    data = build_data(dataset=make(), split={"by": "stratified"})
    x, y = next(data.train.epoch(0))
    assert x.shape[1:] == data.info.input_shape
    assert len(data.info.class_names) == data.info.num_classes
    assert y.shape == ((64, 8) if data.info.task == "multilabel" else (64,))
    assert len(data.info.fingerprint) == 32


def test_digit_attributes() -> None:
    rows = {int(digit): (*row,) for digit, row in zip(tables.digits().y, tables.digits_multilabel().y.tolist())}
    true = {name for name, value in zip(tables.ATTRIBUTES, rows[8], strict=True) if value}
    assert true == {"even", "from_five", "has_loop", "turns_into_digit"}
    assert len({*rows.values()}) == 10, "digits share their attributes"


def test_binary_and_scaled_targets_and_some_digits_only() -> None:
    binary = tables.breast_cancer(binary=True)
    assert (binary.info.task, binary.info.num_classes, binary.y.dtype) == ("binary", 1, torch.float32)
    assert torch.equal(tables.diabetes(target_scale=2.0).y * 2.0, tables.diabetes().y)
    all_ten, some = tables.digits(), tables.digits(classes=[7, 5])
    assert some.info.class_names == ("7", "5")
    assert torch.equal(some.x[some.y == 1], all_ten.x[all_ten.y == 5])
    assert len(some) == int(torch.isin(all_ten.y, torch.tensor([5, 7])).sum())


def test_missing_files_are_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec: Any = None
    monkeypatch.setattr(tables, "find_spec", lambda name: spec)
    refused(tables.wine, "pip install scikit-learn")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    refused(tables.wine, "scikit-learn's file cannot be read")
