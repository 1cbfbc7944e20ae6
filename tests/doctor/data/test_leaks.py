"""Features that know the answer."""

from __future__ import annotations

import pytest
import torch

from lightkit.data import DataInfo, TensorData
from lightkit.data.tables import breast_cancer, diabetes, wine
from tests.doctor.data.planted import Examine, Rows, bad, only, table

LEAKS, ORDER = "leaking features", "row order"
NAMES = ["a", "b", "c", "d", "e", "f", "extra"]


def with_column(column: torch.Tensor, y: torch.Tensor | None = None, name: str = "extra") -> TensorData:
    """A healthy table with one more column."""
    base = table(len(column))
    goal = base.y if y is None else y
    return TensorData(torch.cat([base.x, column[:, None].float()], 1), goal, feature_names=[*NAMES[:-1], name])


@pytest.mark.parametrize("data", [wine(), breast_cancer(), breast_cancer(binary=True), diabetes(target_scale=100.0)])
def test_shipped_tables_raise_no_alarm(data: TensorData, examine: Examine) -> None:
    assert not bad(examine(data, "leaks", normalize="standard"))


@pytest.mark.parametrize("kind", ["copy", "with noise", "another order", "regression", "multilabel", "binary"])
def test_a_feature_that_predicts_the_target_alone_is_named(kind: str, examine: Examine) -> None:
    generator = torch.Generator().manual_seed(1)
    y = table(600).y
    column = y.float()
    info = None
    if kind == "with noise":
        column = y + 0.05 * torch.randn(600, generator=generator)
    elif kind == "another order":
        column = torch.tensor([5.0, -2.0, 1.0])[y]
    elif kind == "regression":
        y = torch.randn(600, generator=generator)
        column = (3 * y + 0.01 * torch.randn(600, generator=generator)).exp()
    elif kind == "multilabel":
        y = torch.randint(2, (600, 3), generator=generator).float()
        column, info = 1 - y[:, 1], DataInfo("multilabel", (7,), 3)
    elif kind == "binary":
        y = torch.randint(2, (600,), generator=generator).float()
        column, info = y * 2, DataInfo("binary", (7,), 1)
    data = with_column(column, y)
    data = TensorData(data.x, y, info, feature_names=NAMES)
    found = only(examine(data, "leaks", normalize="standard"), LEAKS)
    assert found.status == "warning"
    assert found.numbers["features"] == ["extra"]
    assert "data.dataset.features" in found.fix


@pytest.mark.parametrize("normalize", ["none", "standard"])
def test_the_number_of_a_row_that_tells_the_target_is_found(normalize: str, examine: Examine) -> None:
    y = table(600).y.sort().values
    noisy = torch.where(torch.rand(600, generator=torch.Generator().manual_seed(0)) < 0.2, (y + 1) % 3, y)
    found = only(examine(with_column(torch.arange(600), noisy), "leaks", normalize=normalize), LEAKS)
    assert found.status == "warning"
    assert "numbers or dates the rows" in found.measured
    assert found.numbers["features"] == ["extra"]


@pytest.mark.parametrize("normalize", ["none", "standard"])
@pytest.mark.parametrize("kind", ["seconds", "day", "name"])
def test_a_date_that_tells_the_target_is_found(kind: str, normalize: str, examine: Examine) -> None:
    generator = torch.Generator().manual_seed(2)
    when = torch.rand(600, generator=generator, dtype=torch.float64)
    y = ((when + 0.15 * torch.randn(600, generator=generator)) > 0.5).long()
    if kind == "seconds":
        column = (1.6e9 + when * 3e7).round()
    elif kind == "day":
        column = 20200000 + (1 + (when * 11.99).floor()) * 100 + torch.randint(1, 28, (600,), generator=generator)
    else:
        column = (when * 1000).floor()
    data = with_column(column, y, name="visit_date" if kind == "name" else "extra")
    found = only(examine(data, "leaks", normalize=normalize), LEAKS)
    assert found.status == "warning", found
    assert "dates the rows" in found.measured


def test_a_number_that_tells_nothing_is_worth_a_note(examine: Examine) -> None:
    found = only(examine(with_column(torch.arange(600)), "leaks"), LEAKS)
    assert found.status == "note"
    assert "extra" in found.measured


def test_a_watermark_in_the_corner_of_images_is_found(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.rand(400, 3, 20, 20, generator=generator), torch.randint(2, (400,), generator=generator)
    x[:, 1, 19, 0] = y.float() * 0.5 + 0.2
    found = only(examine(TensorData(x, y), "leaks"), LEAKS)
    assert found.status == "warning"
    assert found.numbers["features"] == ["element (1, 19, 0)"]
    assert "element (1, 19, 0) predicts the target" in found.measured
    assert "a mark of the class at this place" in found.fix


def test_sorted_rows_matter_only_where_splits_are_cut_from_them(examine: Examine) -> None:
    base = table(600)
    order = base.y.argsort()
    data = TensorData(base.x[order], base.y[order])
    ordered = only(examine(data, "order", split={"by": "ordered"}), ORDER)
    assert ordered.status == "warning"
    assert ordered.key == "data.split.by"
    shuffled = only(examine(data, "order", split={"by": "random"}), ORDER)
    assert shuffled.status == "ok"
    assert "drawn from all of it" in shuffled.measured


def test_what_cannot_be_compared_is_skipped(examine: Examine) -> None:
    found = examine(Rows([{"x": torch.zeros(3)}] * 60), "leaks")
    assert {finding.status for finding in found} == {"skipped"}
