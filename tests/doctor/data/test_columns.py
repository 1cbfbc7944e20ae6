"""Features that say nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lightkit.data import TensorData
from lightkit.data.csv_file import csv
from lightkit.data.tables import digits
from tests.doctor.data.planted import Examine, Rows, bad, only, table

CONSTANT, MISSING = "constant features", "missing values"


@pytest.mark.parametrize("normalize", ["none", "standard", "minmax"])
def test_a_constant_feature_is_named(normalize: str, examine: Examine) -> None:
    base = table()
    x = base.x.clone()
    x[:, 2] = 7.0
    data = TensorData(x, base.y, feature_names=["a", "b", "c", "d", "e", "f"])
    found = only(examine(data, "columns", normalize=normalize), CONSTANT)
    assert found.status == "warning"
    assert found.numbers["constant"] == ["c"]


def test_pixels_at_the_rim_are_worth_a_note(examine: Examine) -> None:
    found = only(examine(digits(image=False), "columns", normalize="standard"), CONSTANT)
    assert found.status == "note"


def test_blank_images_are_found(examine: Examine) -> None:
    base = digits()
    x = base.x.clone()
    x[::20] = 0.0
    found = only(examine(TensorData(x, base.y), "columns"), CONSTANT)
    assert found.status == "warning"
    assert found.numbers["share"] == pytest.approx(0.05, abs=0.02)
    assert not bad(examine(base, "columns"))


@pytest.mark.parametrize("normalize", ["none", "standard"])
@pytest.mark.parametrize("mark", [-999.0, 9999.0])
def test_a_number_that_stands_for_a_missing_value_is_found(mark: float, normalize: str, examine: Examine) -> None:
    base = table()
    x = base.x.clone()
    x[::10, 1] = mark
    found = only(examine(TensorData(x, base.y), "columns", normalize=normalize), MISSING)
    assert found.status == "warning"
    assert found.numbers["columns"]["feature 1"]["value"] == pytest.approx(mark, rel=1e-3)


def test_heavy_tails_and_many_zeros_are_no_missing_values(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(2000, 4, generator=generator)
    x = torch.stack([normal[:, 0].exp(), normal[:, 1].relu(), normal[:, 2].abs().pow(3), normal[:, 3].exp().exp()], 1)
    assert not bad(examine(TensorData(x, (normal[:, 0] > 0).long()), "columns"))


def test_a_column_that_was_mostly_filled_in_is_found(tmp_path, examine: Examine) -> None:  # type: ignore[no-untyped-def]
    lines = [f"{row % 7},{row if row % 4 == 0 else ''},{row % 2}" for row in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    data = csv(str(tmp_path / "rows.csv"), "y", missing="median")
    found = only(examine(data, "columns", normalize="standard"), MISSING)
    assert found.status == "warning"
    assert found.numbers["filled"]["b"] > 0.6


def test_what_is_no_table_is_skipped(examine: Examine) -> None:
    found = examine(Rows([(torch.zeros(3, dtype=torch.int64), 0.5)] * 40), "columns")
    assert {finding.status for finding in found} == {"skipped"}
    assert dataclasses.asdict(found[0])["measured"]
