from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lightkit.common.drawing import pixels


def test_a_figure_is_drawn_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, draw = [], FigureCanvasAgg.draw
    monkeypatch.setattr(FigureCanvasAgg, "draw", lambda canvas: (draws.append(canvas), draw(canvas)))
    figure = Figure(figsize=(2, 1), dpi=50)
    axes = figure.subplots()
    first = pixels(figure).copy()
    assert first.shape == (50, 100, 4)
    assert np.array_equal(pixels(figure), first)
    assert len(draws) == 1
    axes.plot([1, 2], [1, 2])
    assert not np.array_equal(pixels(figure), first)
    assert len(draws) == 2
