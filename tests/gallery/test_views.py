from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from lightkit.data import DataInfo, TensorData, build_data
from lightkit.gallery.charts import samples_chart
from lightkit.gallery.samples import Sample
from lightkit.gallery.views import CurveView, ImageView, InputView, TableView, TextView, view_of


def data_of(x: torch.Tensor, info: DataInfo | None = None, **options: Any) -> Any:
    y = torch.arange(len(x)) % 2
    return build_data(dataset=TensorData(x, y, info), split={"by": "random"}, **options)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (torch.rand(20, 3, 6, 5), ImageView),
        (torch.rand(20, 1, 6, 5), ImageView),
        (torch.rand(20, 7), TableView),
        (torch.rand(20, 2, 9), CurveView),
        (torch.rand(20, 2, 3, 4, 5), InputView),
    ],
)
def test_each_kind_of_input_has_its_view_and_can_be_drawn(x: torch.Tensor, kind: type[InputView]) -> None:
    data = data_of(x)
    view = view_of(data, x[0])
    assert type(view) is kind
    view.look([x[0], x[1]])
    assert "<" in view.html(x[0])
    axes = Figure().subplots()
    view.draw(axes, x[0])
    axes.figure.draw_without_rendering()


def test_tokens_are_text() -> None:
    info = DataInfo("language_modeling", (4,), 3, (), 3, 4, "", ("?", "<", "$"))
    data = data_of(torch.rand(20, 4))
    data.info = info
    view = view_of(data, torch.tensor([1, 2, 2, 0]))
    assert isinstance(view, TextView)
    assert view.html(torch.tensor([1, 2, 2, 0])) == "<pre>&lt;$$?</pre>"
    axes = Figure().subplots()
    view.draw(axes, torch.tensor([1, 2, 2, 0]))  # a dollar begins no formula
    axes.figure.draw_without_rendering()


def test_scaling_is_undone_for_the_eye() -> None:
    pixels = torch.randint(0, 256, (40, 3, 4, 4), dtype=torch.uint8)
    data = data_of(pixels, normalize="image")
    row = int(data.rows["val"][0])
    x, _ = next(data.val.epoch(0))
    view = view_of(data, x[0])
    view.look(list(x))
    assert view.notes == []
    assert np.array_equal(view.pixels(x[0]), pixels[row].permute(1, 2, 0).numpy())


def test_levels_to_255_and_other_ranges_of_brightness() -> None:
    data = data_of(torch.rand(20, 1, 2, 2))
    view = ImageView(data)
    view.look([torch.tensor([[[0.0, 255.0], [51.0, 102.0]]])])
    assert view.pixels(torch.tensor([[[0.0, 255.0], [51.0, 102.0]]]))[..., 0].tolist() == [[0, 255], [51, 102]]
    other = ImageView(data)
    other.look([torch.tensor([[[-2.0, 2.0], [0.0, 0.0]]])])
    assert other.pixels(torch.tensor([[[-2.0, 2.0], [0.0, 0.0]]]))[..., 0].tolist() == [[0, 255], [128, 128]]
    assert other.notes == ["Brightness runs from -2 (black) to 2 (white)."]


def test_rows_of_a_table_in_their_units() -> None:
    x = torch.tensor([[1000.0, 0.5], [3000.0, 1.5]] * 10)
    data = data_of(x, normalize="standard")
    data.source.feature_names = ("size", "<b>")
    view = view_of(data, data.source.x[0])
    assert view.html(data.source.x[0]) == (
        '<div class="features"><span><i>size</i> 1000</span> <span><i>&lt;b&gt;</i> 0.5</span></div>'
    )


def test_samples_of_any_other_kind_by_their_shapes() -> None:
    sample = {"image": torch.zeros(3, 2, 2), "tags": [torch.zeros(2), "x"]}
    assert "{image: (3, 2, 2) float32, tags: ((2,) float32, str)}" in InputView(data_of(torch.rand(20, 4))).html(sample)
    assert view_of(data_of(torch.rand(20, 4)), sample).html(sample).startswith("<code>{image")


def test_bars_of_all_rows_of_a_table_have_one_axis() -> None:
    x = torch.tensor([[0.5, -1.0], [3.0, 0.0]])
    samples = [Sample(row, x[row], None, "") for row in range(2)]
    figure = samples_chart(samples, view_of(data_of(torch.rand(20, 2)), x[0]), "rows")
    first, second = (axes.get_xlim() for axes in figure.axes[:2])
    assert first == second
    assert first[0] < -1
    assert first[1] > 3
