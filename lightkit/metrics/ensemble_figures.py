"""Figures of ensembles: over size and epochs, calibration, pairs of members, weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lightkit.common.drawing import (
    BLUE,
    COLOURS,
    FAINT,
    INK,
    ORANGE,
    add_legend,
    cells,
    empty_figure,
    new_figure,
    ruled,
    short,
    style,
)
from lightkit.metrics.drawing import WRITTEN_CELLS, square_ticks

_BARS = 40
_DASHES = (0, (4, 3))
Series = tuple[Sequence[float], Sequence[float]]
"""x and y of a line."""


def over_size(
    sizes: Sequence[int],
    drawn: Sequence[Sequence[float]],
    *,
    metric: str,
    first: Sequence[float] | None = None,
    mode: str = "max",
    split: str = "",
) -> Figure:
    """Draw a metric of ensembles of growing size, with the mean and the best single member to compare with.

    Args:
        sizes: Numbers of members.
        drawn: Values of different subsets of that many, for each size.
        metric: Name of the metric.
        first: The value of the first so many members, for each size.
        mode: `max` or `min`: which values are better.
        split: Where it was measured, for the title.
    """
    where = f" on {split}" if split else ""
    figure, axes = new_figure(7.0, 4.4, f"{metric}{where} over the size of the ensemble")
    groups = [np.asarray(values, dtype=float) for values in drawn]
    for low, high, alpha, label in ((0, 100, 0.12, "all subsets"), (25, 75, 0.25, "middle half")):
        edges = [np.nanpercentile(values, [low, high]) for values in groups]
        axes.fill_between(sizes, *np.transpose(edges), color=BLUE, alpha=alpha, linewidth=0, label=label)
    axes.plot(sizes, [np.nanmean(values) for values in groups], color=BLUE, linewidth=2, marker="o", label="mean")
    axes.lines[-1].set_markersize(4 if len(sizes) <= 32 else 0)
    if first is not None:
        axes.plot(sizes, first, color=ORANGE, linewidth=1.4, label="in their order", zorder=3)
    if 1 in sizes:
        single = groups[list(sizes).index(1)]
        best = np.nanmax(single) if mode == "max" else np.nanmin(single)
        for value, style, label in ((best, _DASHES, "best member"), (np.nanmean(single), ":", "mean member")):
            axes.axhline(value, color=INK, linewidth=1, linestyle=style, label=f"{label}  {_number(value)}", zorder=2)
    _labelled(axes, "members", metric)
    return figure


def over_epochs(members: Mapping[str, Series], ensemble: Series | None, *, metric: str) -> Figure:
    """Draw a metric of each member over epochs, pale where there are many, and of the ensemble.

    Args:
        members: Epochs and values by name of the member.
        ensemble: Epochs and values of the ensemble; None where it was not measured.
        metric: Name of the metric.
    """
    figure, axes = new_figure(7.0, 4.4, f"{metric} over epochs")
    few = len(members) <= len(COLOURS)
    for number, (name, (epochs, values)) in enumerate(members.items()):
        colour = COLOURS[number] if few else COLOURS[-3]
        label = short(name) if few else "members" if number == 0 else None
        marker = "o" if len(epochs) == 1 else None
        axes.plot(
            epochs, values, color=colour, linewidth=1.2, alpha=0.75 if few else 0.4, label=label, marker=marker, ms=4
        )
    if ensemble is not None:
        marker = "o" if len(ensemble[0]) == 1 else None
        axes.plot(*ensemble, color=INK, linewidth=2.4, label="ensemble", marker=marker, zorder=4)
    _labelled(axes, "epoch", metric)
    return figure


def reliability(
    edges: Sequence[float],
    confidence: Sequence[float],
    accuracy: Sequence[float],
    counts: Sequence[float],
    *,
    error: float,
    task: str = "multiclass",
) -> Figure:
    """Draw a reliability diagram: what came true over what was claimed, and how often it was claimed.

    Args:
        edges: Limits of the bins.
        confidence: Mean probability in each bin, NaN in an empty one.
        accuracy: What share of it was true, NaN in an empty one.
        counts: Predictions in each bin.
        error: The expected calibration error.
        task: Kind of targets: of `multiclass` the decided class is meant, else the label.
    """
    limits, claimed, true = (np.asarray(values, dtype=float) for values in (edges, confidence, accuracy))
    title = f"Reliability: expected calibration error {error:.3f}"
    figure = empty_figure(5.4, 6.2, title, w_pad=0.12, h_pad=0.1)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    widths, known = np.diff(limits) * 0.92, ~np.isnan(true)
    centres = (limits[:-1] + limits[1:]) / 2
    axes.bar(centres[known], true[known], widths[known], color=BLUE, alpha=0.85, label="came true", zorder=2)
    gap = claimed - true
    axes.bar(
        centres[known], gap[known], widths[known], bottom=true[known], label="gap", zorder=3,
        color=(0, 0, 0, 0), edgecolor=ORANGE, linewidth=1.1, hatch="////",
    )  # fmt: skip
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=_DASHES, label="calibrated", zorder=4)
    axes.set(ylim=(0, 1.02), ylabel="share that is right" if task == "multiclass" else "share that is true")
    add_legend(axes, loc="upper left")
    total = max(1.0, float(np.sum(counts)))
    below.bar(centres, np.asarray(counts, dtype=float) / total, widths, color=COLOURS[-3], zorder=2)
    below.set_ylabel("predictions")
    below.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    below.yaxis.set_major_locator(MaxNLocator(3))
    below.set_xlabel("probability of the decided class" if task == "multiclass" else "probability of the label")
    for part in (axes, below):
        part.set_xlim(-0.01, 1.01)
        ruled(part, "y")
        style(part)
    figure.align_ylabels()
    return figure


def pairs(matrix: Sequence[Sequence[float]], names: Sequence[str], *, title: str, signed: bool = False) -> Figure:
    """Draw a heat map of a value of each pair of members; the diagonal, which says nothing of pairs, stays blank.

    Args:
        matrix: `(M, M)`.
        names: Names of the members.
        title: What the values are.
        signed: The values are from -1 to 1, as correlations are; else from 0.
    """
    values = np.array(matrix, dtype=float)
    np.fill_diagonal(values, np.nan)
    size = len(names)
    width = min(14.0, max(4.4, 2.4 + (0.5 if size <= WRITTEN_CELLS else 0.12) * size))
    figure, axes = new_figure(width + 0.6, width, title)
    known = values[~np.isnan(values)]
    low, high = (-1.0, 1.0) if signed else (0.0, max(1e-12, known.max(initial=0.0)))
    image = axes.imshow(values, cmap="RdBu_r" if signed else "Blues", vmin=low, vmax=high, interpolation="nearest")
    axes.set_facecolor(FAINT)
    square_ticks(axes, names)
    texts = [
        (*place, value, f"{value:.2f}".replace("-", "−").replace("0.", ".", 1))
        for place, value in np.ndenumerate(values)
        if not math.isnan(value)
    ]
    cells(axes, image, texts if size <= WRITTEN_CELLS else None, 7.5)
    return figure


def weights(names: Sequence[str], values: Sequence[float]) -> Figure:
    """Draw the weight of each member as a bar; of many members the heaviest.

    Args:
        names: Names of the members.
        values: Their weights.
    """
    heaviest = sorted(range(len(values)), key=lambda at: -values[at])[:_BARS]
    shown = sorted(heaviest)
    more = f" (heaviest: {len(shown)} of {len(values)})" if len(shown) < len(values) else ""
    figure, axes = new_figure(6.0, 1.2 + 0.3 * max(2, len(shown)), f"Weights of the members{more}")
    places = list(range(len(shown)))
    chosen = [values[at] for at in shown]
    axes.barh(places, chosen, height=0.68, color=[BLUE if value else FAINT for value in chosen], zorder=2)
    most = max(max(chosen, default=0.0), 1e-12)
    for place, value in zip(places, chosen):
        axes.text(value + most * 0.015, place, _number(value) if value else "0", va="center", fontsize=8, color=INK)
    axes.set(xlim=(0, most * 1.14), ylim=(len(shown) - 0.4, -0.6), xlabel="weight")
    axes.set_yticks(places, [short(names[at]) for at in shown])
    ruled(axes, "x")
    return figure


def _labelled(axes: Axes, counted: str, metric: str) -> None:
    """Name the axes of a metric over something that is counted, with the legend on the right and lines behind."""
    axes.set(xlabel=counted, ylabel=metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    add_legend(axes, loc="center left", bbox_to_anchor=(1.0, 0.5))
    ruled(axes)


def _number(value: float) -> str:
    return f"{value:.3f}" if 1e-3 <= abs(value) < 1e3 else f"{value:.3g}"
