"""Imported where tests begin: a process draws each kind of figure once, of few pixels, in less time than a short run.

Compressing the pixels would take as long as drawing them.
"""

from __future__ import annotations

from typing import Any

import torch

from lightkit.common import drawing
from lightkit.metrics.figures import NAMES, Figures

FEW = 20
"""Dots per inch."""
draw, png, _drawn = Figures.draw, drawing.png, dict[tuple[Any, ...], Any]()


def drawn_once(self: Figures) -> dict[str, Any]:
    """The figures that were asked for, with whatever was drawn first for such a task, classes and names."""
    if self._empty:
        return {}
    key = (self.task, *self.class_names, *self.names)
    if key not in _drawn:
        _drawn[key] = draw(self)
        for figure in _drawn[key].values():
            figure.set_dpi(FEW)
    return dict(_drawn[key])


def draw_first() -> None:
    """Draw what runs on the smallest data sets draw, which the processes that are forked from this one then have."""
    for classes in ([f"class_{number}" for number in range(3)], [str(number) for number in range(10)]):
        figures = Figures("multiclass", NAMES, classes, len(classes))
        figures.update(torch.eye(len(classes)), torch.arange(len(classes)))
        for figure in figures.draw().values():
            drawing.pixels(figure)


def roughly(figure: Any) -> bytes:
    """The picture of a page, whose parts keep no distance from each other."""
    figure.set_dpi(FEW)
    figure.set_layout_engine("none")
    return png(figure)


drawing.png = roughly
Figures.draw = drawn_once  # type: ignore[method-assign]
