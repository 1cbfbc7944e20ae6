"""How all figures and pages look, and how they become pixels and files.

Plain matplotlib figures: pyplot, its windows and its global state are never touched.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

DPI = 144
INK, FAINT, PALE = "#1f2933", "#d5dae0", "#a9c3e3"
COLOURS = (
    "#2a6fbb", "#e08214", "#2f9e69", "#c2385a", "#7b5ec6", "#8c6a4f", "#d86fb0", "#6b7a89", "#a8a22c", "#1fa6b8",
)  # fmt: skip
BLUE, ORANGE, GREEN = COLOURS[:3]


def empty_figure(width: float, height: float, title: str = "", **layout: Any) -> Figure:
    """Make a figure without a plot, sizes in inches; the keyword arguments are those of the constrained layout."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(**layout))
    if title:
        figure.suptitle(title, fontsize=11, color=INK, fontweight="bold")
    return figure


def new_figure(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """Make a figure of one plot without a frame, sizes in inches."""
    figure = empty_figure(width, height, title, compress=True, w_pad=0.12, h_pad=0.1)  # less cuts labels off
    axes = figure.subplots()
    style(axes)
    return figure, axes


def panels(count: int, across: int, size: tuple[float, float], title: str = "") -> tuple[Figure, list[Axes]]:
    """Make a figure of several plots in lines.

    Args:
        count: How many there are.
        across: How many stand in a line at most.
        size: Width and height of each in inches.
        title: Stands above all.
    """
    across = max(1, min(across, count))
    lines = max(1, math.ceil(count / across))
    figure = empty_figure(max(4.0, size[0] * across), size[1] * lines + (0.6 if title else 0.0), title)
    all_axes = [*np.ravel(figure.subplots(lines, across, squeeze=False))]
    for axes in all_axes[count:]:
        axes.set_visible(False)
    return figure, all_axes[:count]


def style(axes: Axes) -> None:
    """Make axes look like those of all figures: small labels, no frame."""
    axes.tick_params(labelsize=8, colors=INK)
    axes.xaxis.label.set(color=INK, fontsize=9)
    axes.yaxis.label.set(color=INK, fontsize=9)
    bare(axes)


def bare(axes: Axes) -> None:
    """Take the frame of axes away."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)


def ruled(axes: Axes, axis: str = "both") -> None:
    """Draw faint lines behind what is drawn, at the ticks of an axis or of both."""
    axes.grid(axis=axis, color=FAINT, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def add_legend(axes: Axes, **place: Any) -> Any:
    """Add a legend; the arguments are matplotlib's."""
    return axes.legend(**{"frameon": False, "fontsize": 8, "labelcolor": INK, "alignment": "left", **place})


def cells(axes: Axes, image: Any, texts: Sequence[tuple[int, int, float, str]] | None, size: float) -> Any:
    """Finish a heat map: lines between the cells with what is written into these, and a bar of its colours.

    Args:
        axes: Where the image is.
        image: What `imshow` gave.
        texts: Row, column, value and text of each cell; None where the cells are too many.
        size: Of the texts, in points.

    Returns:
        The bar.
    """
    for row, column, value, text in texts or ():
        write_cell(axes, row, column, text, image.cmap(image.norm(value)), size)
    if texts is not None:
        rows, columns = image.get_array().shape
        axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
        axes.tick_params(which="minor", length=0)
    assert axes.figure is not None
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=0, colors=INK)
    return bar


def write_cell(axes: Axes, row: int, column: int, text: str, colour: Any, size: float) -> None:
    """Write into a cell of a heat map, white on a dark colour."""
    light = sum(colour[:3]) > 1.6
    axes.text(column, row, text, ha="center", va="center", fontsize=size, color=INK if light else "white")


def shades(count: int) -> list[Any]:
    """Return a colour for each of several curves, shades of one scale where there are more than `COLOURS`."""
    scale = colormaps["viridis"]
    few = count <= len(COLOURS)
    return [*COLOURS[:count]] if few else [scale(0.95 * (1 - place / (count - 1))) for place in range(count)]


def short(name: str, limit: int = 18) -> str:
    """Cut a name that is longer than the limit."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def pixels(figure: Figure) -> Any:
    """Draw a figure as an array of bytes `(height, width, 4)`, red, green, blue and opacity.

    It is drawn once whoever asks for it: drawing is what takes long.

    Args:
        figure: Keeps its picture until something of it changes.
    """
    canvas = figure.canvas
    if figure.stale or not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def png(figure: Figure) -> bytes:
    """Return a figure as the content of a PNG file."""
    written = io.BytesIO()
    figure.savefig(written, format="png", metadata={"Software": None})
    return written.getvalue()


def render(template: Path, **values: Any) -> str:
    """Return a page; text in it is escaped, unless the template says otherwise.

    Args:
        template: A template of jinja2 that extends `shell.html`, which lies beside this module.
        **values: What stands in it, among it `title`.
    """
    from jinja2 import Environment, FileSystemLoader  # takes its time, and few commands make a page

    places = FileSystemLoader([template.parent, Path(__file__).parent])
    text: str = Environment(loader=places, autoescape=True).get_template(template.name).render(values)
    return text


def embedded(content: Any) -> str:
    """Return plain values as JSON that may stand in an element of HTML, and cannot end it."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
