"""The scale of inputs and targets."""

from __future__ import annotations

import pytest
import torch

from lightkit.data import TensorData
from lightkit.data.tables import diabetes, digits, wine
from tests.doctor.data.planted import Examine, Rows, bad, only, table

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
