"""Filling missing values, compared with scikit-learn's `SimpleImputer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightkit.data import SplitSpec, TensorData, build_data
from lightkit.data.csv_file import csv
from lightkit.data.impute import Gaps, Imputer
from lightkit.data.missing import STRATEGIES
from tests.refused import refused

KINDS = ("blue", "green", "red")


def numbers(seed: int = 0, rows: int = 41) -> Tensor:
    """Three columns of few different numbers, the last without gaps."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 4, (rows, 3), generator=generator) / 3
    x[:, :2][torch.rand(rows, 2, generator=generator) < 0.3] = torch.nan
    return x


def gaps(strategy: str, constant: float = 0.0) -> list[Gaps]:
    return [Gaps(f"c{i}", strategy, i, None, constant) for i in range(3)]


@pytest.mark.parametrize("add_indicator", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_numbers_are_filled_as_scikit_learn_does(strategy: str, add_indicator: bool) -> None:
    from sklearn.impute import SimpleImputer

    for seed in range(3):
        train, other = numbers(seed), numbers(seed + 100, rows=9)
        other[0, 2] = torch.nan  # a gap in a column that has none in training rows
        theirs = SimpleImputer(strategy=strategy, fill_value=7.0, add_indicator=add_indicator)
        theirs.fit(train.double().numpy())
        ours = Imputer(gaps(strategy, 7.0), add_indicator=add_indicator).fit(train)
        for x in (train, other):
            expected = torch.from_numpy(theirs.transform(x.double().numpy())).to(torch.float32)
            torch.testing.assert_close(ours(x), expected, rtol=1e-6, atol=1e-7)
            assert x.isnan().any(), "the rows themselves stay as they are"


def names(cells: list[str | None]) -> Tensor:
    """A categorical column as features, after one of numbers."""
    spread = [[np.nan if cell is None else float(cell == kind) for kind in KINDS] for cell in cells]
    return torch.tensor([[1.0, *row] for row in spread])


@pytest.mark.parametrize("strategy", ["most_frequent", "constant"])
@pytest.mark.parametrize(
    "cells",
    [["red", "red", None, "blue"], ["red", "green", None, "green", "red"], [None, "green", "blue", None]],
    ids=["one", "two as often", "all once"],
)
def test_names_are_filled_as_scikit_learn_does(strategy: str, cells: list[str | None]) -> None:
    from sklearn.impute import SimpleImputer

    column = np.array([[cell] for cell in cells], dtype=object)
    theirs = SimpleImputer(strategy=strategy, fill_value="green", missing_values=None).fit_transform(column)
    filling = Imputer([Gaps("colour", strategy, 1, KINDS, "green")]).fit(names(cells))
    assert torch.equal(filling(names(cells)), names([row[0] for row in theirs]))


def test_what_was_fitted_survives_being_written_down() -> None:
    imputer = Imputer([*gaps("mean"), Gaps("colour", "most_frequent", 3, KINDS)], add_indicator=True)
    x = torch.cat([numbers(rows=4), names(["red", "red", None, "blue"])[:, 1:]], 1)
    x[0, 0] = torch.nan
    filling = imputer.fit(x)
    again = imputer.load(json.loads(json.dumps(filling.state_dict())))
    assert torch.equal(filling(x), again(x))
    assert "colour 1 (most_frequent red); with an indicator each: " in str(filling.note(x))
    assert filling.note(filling(x)[:, :6]) is None
    mean, other = gaps("mean"), Gaps("c2", "constant", 2, KINDS)
    state = Imputer(mean).fit(numbers()).state_dict()
    for columns in (mean[:2], [*mean, Gaps("more", "mean", 3)], [*mean[:2], other]):
        refused(lambda columns=columns: Imputer(columns).load(state), "not those that the run was trained with")


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_a_column_without_a_value_in_the_training_rows(strategy: str) -> None:
    x = numbers()
    x[:, 1] = torch.nan
    text = "missing: column 'c1' has no value in any of the 41 training rows … leave it out"
    refused(lambda: Imputer(gaps(strategy)).fit(x), text)
    assert Imputer(gaps("constant", 2.0)).fit(x)(x)[:, 1].unique().tolist() == [2.0]


@pytest.mark.parametrize("split", [{"by": "random"}, {"by": "fold", "fold": 1}, {"by": "random", "limit": 10}])
def test_only_training_rows_are_looked_at(split: dict[str, Any]) -> None:
    x = numbers(rows=60)
    source = TensorData(x, torch.arange(60) % 2, imputer=Imputer(gaps("mean")))
    data = build_data(dataset=source, split=SplitSpec(**split))
    means = x[data.rows["train"]].double().nanmean(0).to(torch.float32)
    assert data.filling is not None
    assert [data.filling.values[f"c{i}"] for i in range(3)] == [[value] for value in means.tolist()]
    for name, loader in data.loaders().items():
        inputs = torch.cat([batch[0] for batch in data.evaluation(name).epoch(0)])  # type: ignore[union-attr]
        expected = x[loader.rows]
        assert torch.equal(inputs, torch.where(expected.isnan(), means, expected))


def test_scaling_sizes_and_names_of_features_see_the_filled_rows(tmp_path: Path) -> None:
    data = TensorData(numbers(rows=60), torch.arange(60) % 2, imputer=Imputer(gaps("median"), add_indicator=True))
    made = build_data(dataset=data, split={"by": "ordered"}, normalize="standard")
    assert made.info.input_shape == (5,)
    inputs = torch.cat([batch[0] for batch in made.evaluation("train").epoch(0)])  # type: ignore[union-attr]
    torch.testing.assert_close(inputs.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    assert made.info.fingerprint == data.info.fingerprint
    file, missing = tmp_path / "data.csv", {"size": "mean", "colour": "error"}
    file.write_text("size,colour,label\n1,red,a\n,blue,b\n3,red,a\n4,blue,b\n")
    source = csv(str(file), "label", categorical=["colour"], missing=missing, add_indicator=True)
    assert source.feature_names == ("size", "colour=blue", "colour=red")
    made = build_data(dataset=source, split={"by": "random", "val": 0, "test": 0})
    assert made.source.feature_names == ("size", "colour=blue", "colour=red", "size missing")
    assert made.info.input_shape == (4,)
