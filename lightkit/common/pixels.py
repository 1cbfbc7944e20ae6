"""A matplotlib figure as pixels, drawn once whoever asks for them: drawing is what takes long."""

from __future__ import annotations

from typing import Any


def pixels(figure: Any) -> Any:
    """Draw a figure as an array of bytes `(height, width, 4)`, red, green, blue and opacity.

    Nothing of pyplot is imported, which would look for a window system.

    Args:
        figure: A matplotlib figure; keeps its picture until something of it changes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from numpy import asarray

    canvas = figure.canvas
    if figure.stale or not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return asarray(canvas.buffer_rgba())
