"""Features that say nothing."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lightkit.data import TensorData
from lightkit.data.csv_file import csv
from lightkit.data.tables import diabetes, digits, wine
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


INPUTS, TARGETS = "input scale", "target scale"


@pytest.mark.parametrize("change", [lambda x: x * 255, lambda x: x * 1e-4, lambda x: x + 1000, lambda x: x * 0 + 3])
def test_inputs_of_another_scale_are_found(change, examine: Examine) -> None:  # type: ignore[no-untyped-def]
    base = table()
    found = only(examine(TensorData(change(base.x), base.y), "scale"), INPUTS)
    assert found.is_bad
    assert found.key == "data.normalize"


def test_features_of_unlike_units_are_found_and_mended_by_scaling(examine: Examine) -> None:
    base = table()
    data = TensorData(base.x * torch.tensor([1e-3, 1.0, 1.0, 1.0, 5.0, 1.0]), base.y)
    found = only(examine(data, "scale"), INPUTS)
    assert found.status == "warning"
    assert "times as wide" in found.measured
    assert found.fix == "data.normalize=standard"
    assert not bad(examine(data, "scale", normalize="standard"))


def test_levels_of_images_get_the_scaling_of_images(examine: Examine) -> None:
    base = digits()
    found = only(examine(TensorData(base.x * 255, base.y), "scale"), INPUTS)
    assert found.fix == "data.normalize=image"
    assert not bad(examine(base, "scale"))


def test_yes_and_no_beside_measurements_are_fine(examine: Examine) -> None:
    base = table()
    rare = (torch.arange(len(base)) % 50 == 0).float()[:, None]
    assert not bad(examine(TensorData(torch.cat([base.x, rare], 1), base.y), "scale"))


def test_wine_needs_its_scaling(examine: Examine) -> None:
    assert bad(examine(wine(), "scale"))
    assert not bad(examine(wine(), "scale", normalize="standard"))


def test_targets_far_from_zero_are_found(examine: Examine) -> None:
    found = only(examine(diabetes(), "scale", normalize="standard"), TARGETS)
    assert found.status == "warning"
    assert found.fix.endswith("data.dataset.target_scale=100")
    assert not bad(examine(diabetes(target_scale=100.0), "scale", normalize="standard"))


def test_samples_without_numbers_are_skipped(examine: Examine) -> None:
    assert only(examine(Rows([{"x": torch.zeros(3)}] * 40), "scale"), INPUTS).status == "skipped"
