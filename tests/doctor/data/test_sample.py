"""Reading some rows of each split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.data import Data, TensorData, build_data
from lightkit.data.groups import row_marks
from lightkit.data.tables import digits, wine
from lightkit.doctor.data.labels import find_unreadable
from lightkit.doctor.data.sample import DataSample, describe
from tests.doctor.data.conftest import Broken, Rows


def of(dataset: Any, **settings: Any) -> Data:
    return build_data(dataset=dataset, **{"split": {"by": "random"}, **settings})


def test_equal_rows_have_equal_marks_and_others_have_not() -> None:
    x = digits(image=False).x
    marks = row_marks(x)
    assert len(marks.unique()) == len(x.unique(dim=0))
    assert torch.equal(row_marks(x.clone()), marks)
    assert torch.equal(row_marks(x.reshape(-1, 1, 8, 8)), marks)
    assert row_marks(torch.tensor([[0.0]])) == row_marks(torch.tensor([[-0.0]]))
    assert len(row_marks(torch.arange(256, dtype=torch.uint8)[:, None]).unique()) == 256
    # The low bits are as varied as the others, so that rows can be dealt out by them.
    assert (marks & 3).bincount(minlength=4).min() > len(x) / 6


def test_images_are_described_without_brightness_and_contrast() -> None:
    x = torch.rand(5, 3, 40, 30, generator=torch.Generator().manual_seed(0))
    assert describe(x).shape == (5, 192)
    torch.testing.assert_close(describe(x * 0.5 + 0.2), describe(x), rtol=1e-3, atol=1e-3)
    assert describe(torch.rand(5, 12)).shape == (5, 12)
    assert describe(torch.rand(5, 2, 4000)).shape == (5, 128)


def test_a_sample_is_as_the_model_gets_it_and_can_be_unscaled() -> None:
    data = of(wine(), normalize="standard")
    sample = DataSample(data)
    x = sample.train.x
    assert x is not None
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    torch.testing.assert_close(sample.unscaled(x), wine().x[sample.train.rows[: len(x)]], rtol=1e-4, atol=1e-3)
    assert sample.columns()[0] == "alcohol"
    assert sample.is_table
    assert sample.splits == ["train", "val", "test"]


def test_large_data_is_read_in_part() -> None:
    data = of(TensorData(torch.randn(3000, 4), torch.randint(2, (3000,))))
    sample = DataSample(data, most=500)
    assert (len(sample.train.rows), len(sample["test"].rows), sample.train.total) == (500, 300, 2100)
    assert sample.train.share == pytest.approx(500 / 2100)
    targets = sample.targets("train")
    assert targets is not None
    assert len(targets) == 2100, "targets in memory are known without reading"
    slow = DataSample(data, seconds=0.0)
    assert 0 < len(slow.train.rows) < 2100, "slow data is read for a while only"


def test_what_ends_the_reading_is_kept_and_told() -> None:
    data = of(Broken([(torch.zeros(3), 0.5)] * 80, at=40), split={"val": 0, "test": 0})
    (finding,) = find_unreadable(DataSample(data))
    assert finding.numbers == {"split": "train"}
    assert finding.measured.startswith("reading train ended: ")


@pytest.mark.parametrize(
    "listed",
    [{"files": [Path(f"{row}.png") for row in range(40)]}, {"samples": [(f"{row}.png", 0) for row in range(40)]}],
    ids=["files", "samples"],
)
def test_files_are_known_where_the_data_set_lists_them(listed: dict[str, Any]) -> None:
    rows = Rows([(torch.zeros(3), 0.5)] * 40)
    vars(rows).update(listed)
    if "samples" in listed:
        rows.__class__ = type("Listed", (Rows,), {"__getitem__": lambda self, row: (torch.zeros(3), 0.5)})
    assert [file.name for file in DataSample(of(rows)).files()][:2] == ["0.png", "1.png"]


def test_keys_are_those_that_the_data_set_takes() -> None:
    data = of(wine())
    assert DataSample(data).key("features") == "data.dataset.features"
    assert DataSample(data, settings=["path"]).key("features") == "data.dataset"
