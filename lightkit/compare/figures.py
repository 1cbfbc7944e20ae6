"""A comparison as a picture: curves of the metrics above, parallel coordinates below."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightkit.compare.comparison import RunComparison
from lightkit.compare.curves import RunCurve, read_curves
from lightkit.compare.grouping import shown
from lightkit.runs.filters import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 144
_PALETTE = (
    "#2a6fbb", "#e08214", "#2f9e69", "#c2385a", "#7b5ec6", "#8c6a4f", "#d86fb0", "#6b7a89", "#a8a22c", "#1fa6b8",
)  # fmt: skip
_INK, _FAINT = "#1f2933", "#d5dae0"
_MOST_LINES = 60
_NAMED = 12
"""Groups that a legend names."""
_PANELS = 6
_WIDTH = 13.0
_LOGARITHMIC = 20.0
"""Largest value of a key over its smallest from which on its axis is logarithmic."""


def draw_png(comparison: RunComparison, title: str) -> bytes:
    """Draw the picture, as a PNG file.

    Args:
        comparison: What is shown.
        title: Its heading.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = [read_curves(row.group) for row in comparison.rows[:_MOST_LINES]]
    logged = dict.fromkeys(name for each in curves for name in each)
    wanted = [*comparison.metrics, *(name for name in logged if name.startswith("val/")), "train/loss"]
    names = [name for name in dict.fromkeys(wanted) if name in logged][:_PANELS]
    across = 2 if len(names) in (2, 4) else 3
    lines, has_axes = math.ceil(len(names) / across), bool(comparison.keys) and len(comparison.rows) > 1
    heights = [3.2] * lines + [3.6] * has_axes or [1.0]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 0.6), dpi=_DPI, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
    grid = figure.add_gridspec(len(heights), 6, height_ratios=heights)
    colours = _colours(len(comparison.rows))
    for place, name in enumerate(names):
        columns = 6 // min(across, len(names))
        column = place % across * columns
        axes = figure.add_subplot(grid[place // across, column : column + columns])
        _draw_curves(axes, name, [each.get(name) for each in curves], colours)
    if names and 1 < len(comparison.rows) <= _NAMED:
        labels = [row.label for row in comparison.rows]
        handles = [figure.axes[0].plot([], [], color=colour)[0] for colour in colours]
        figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    if has_axes:
        _draw_parallel(figure.add_subplot(grid[lines, :]), comparison)
    FigureCanvasAgg(figure)
    written = io.BytesIO()
    figure.savefig(written, format="png", metadata={"Software": None})
    return written.getvalue()


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    if count <= len(_PALETTE):
        return list(_PALETTE[:count])
    return [colormaps["viridis"](0.95 * (1 - place / (count - 1))) for place in range(count)]


def _draw_curves(axes: Axes, name: str, curves: Sequence[RunCurve | None], colours: Sequence[Any]) -> None:
    for curve, colour in reversed([*zip(curves, colours)]):  # the best on top
        if curve is None:
            continue
        if max(curve.seeds) > 1:
            low = [mean - sd for mean, sd in zip(curve.means, curve.deviations)]
            high = [mean + sd for mean, sd in zip(curve.means, curve.deviations)]
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(curve.steps, curve.means, color=colour, linewidth=1.5)
    axes.set_title(name, fontsize=10, loc="left", color=_INK)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(color=_FAINT, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_parallel(axes: Axes, comparison: RunComparison) -> None:
    """Draw a line for each group through the keys and the metrics, coloured by the first metric."""
    from matplotlib import colormaps

    names = [*comparison.keys, *comparison.metrics]
    scales = [_heights(comparison, name) for name in names]
    tint = scales[len(comparison.keys)][0] if comparison.metrics else [None] * len(comparison.rows)
    mode = next(iter(comparison.metrics.values()), None)
    for row, colour in reversed([*enumerate(tint)]):
        points = [(place, heights[row]) for place, (heights, _) in enumerate(scales) if heights[row] is not None]
        share = None if colour is None else 1 - colour if mode == "min" else colour
        shade = _FAINT if share is None else colormaps["viridis"](0.95 * share)
        axes.plot(*zip(*points), color=shade, linewidth=1.6, alpha=0.85)
    written: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 7.5}
    written["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    for place, (_, marks) in enumerate(scales):
        axes.axvline(place, color=_INK, linewidth=0.8)
        for height, text in marks:
            axes.annotate(text, (place, height), (-6, 0), **written)
    short = comparison.names
    axes.set_xticks(range(len(names)), [short.get(name, name) for name in names], fontsize=9, fontweight="bold")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.set_xlim(-0.35, len(names) - 0.85)
    axes.set_ylim(-0.04, 1.04)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def _heights(comparison: RunComparison, name: str) -> tuple[list[float | None], list[tuple[float, str]]]:
    """Return the height of each group on an axis, from 0 to 1, and what is written along it."""
    is_metric = name in comparison.metrics
    values = [row.cells[name].mean if is_metric else row.group.values.get(name) for row in comparison.rows]
    numbers = [as_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if is_metric or (known and all(n is not None or v is None for n, v in zip(numbers, values))):
        return _numeric(numbers, known, is_metric=is_metric)
    texts = ["–" if value is None else shown(name, value) for value in values]
    distinct = sorted(set(texts))
    places = {text: i / (len(distinct) - 1) if len(distinct) > 1 else 0.5 for i, text in enumerate(distinct)}
    return [places[text] for text in texts], [(place, text[:24]) for text, place in places.items()]


def _numeric(
    numbers: Sequence[float | None], known: Sequence[float], *, is_metric: bool
) -> tuple[list[float | None], list[tuple[float, str]]]:
    if not known:
        return [None] * len(numbers), []
    low, high = min(known), max(known)
    logarithmic = not is_metric and low > 0 and high / low >= _LOGARITHMIC

    def height(number: float) -> float:
        if low == high:
            return 0.5
        if logarithmic:
            return math.log(number / low) / math.log(high / low)
        return (number - low) / (high - low)

    marks = sorted(set(known))
    if is_metric or len(marks) > 8:
        marks = [low, high] if low < high else [low]
    return [None if n is None else height(n) for n in numbers], [(height(mark), f"{mark:.4g}") for mark in marks]
