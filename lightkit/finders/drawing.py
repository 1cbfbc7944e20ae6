"""Pictures of what finders saw: plain matplotlib figures, without pyplot, its windows and its global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.diagnostics.memory import Probe
from lightkit.finders.lr import FoundRate, smooth
from lightkit.finders.speeds import FoundWorkers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 144
_BLUE, _ORANGE, _GREEN, _INK, _FAINT, _PALE = "#2a6fbb", "#e08214", "#2f9e69", "#1f2933", "#d5dae0", "#a9c3e3"
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))


def draw_lr(found: FoundRate, title: str) -> Figure:
    """Draw the losses over the rates, smoothed and as they were, with the rate that is suggested.

    Args:
        found: What was found.
        title: Heading.
    """
    figure, axes = _figure(title)
    rates, losses = [point.lr for point in found.points], [point.loss for point in found.points]
    smoothed, seen, best = smooth(losses), found.range, found.suggestion
    trained = sorted(training for training in found.trainings if training.losses)
    axes.plot(rates, losses, ".", color=_PALE, label="loss of a batch")
    axes.plot(rates, smoothed, color=_BLUE, label="smoothed")
    axes.set_xscale("log")
    top = max(smoothed[: max(2, len(smoothed) // 10)])
    low = min([*smoothed, *(training.loss for training in trained)])
    axes.set_ylim(min(low, *losses) - 0.05 * (top - low), top + 0.35 * (top - low or 1.0))
    if seen is not None:
        axes.plot([seen.lowest.lr], [seen.lowest.loss], "o", color=_GREEN, label=f"lowest: {seen.lowest.lr:.2g}")
        if seen.harmful:
            axes.axvspan(seen.harmful, rates[-1], color=_FAINT, alpha=0.5, lw=0, label=f"harm: from {seen.harmful:.2g}")
    if trained:
        ends = [training.lr for training in trained], [training.loss for training in trained]
        axes.plot(*ends, "s--", color=_ORANGE, lw=1, ms=4, label=f"end of trainings of {found.short} steps")
    if best is not None:
        axes.axvline(best.lr, color=_ORANGE, label=f"suggested: {best.lr:g}")
    axes.axvline(found.configured, color=_INK, lw=1, ls=":", label=f"optim.lr: {found.configured:g}")
    axes.set_xlabel("learning rate (optim.lr)")
    axes.set_ylabel("training loss")
    axes.legend(frameon=False, fontsize=8, loc="upper left" if best is None else "lower left")
    return figure


def draw_workers(found: FoundWorkers, title: str) -> Figure:
    """Draw the samples a second over the number of loader processes, with what the computation could take.

    Args:
        found: What was found.
        title: Heading.
    """
    figure, axes = _figure(title)
    places = list(range(len(found.speeds)))
    colours = [_ORANGE if speed.workers == found.suggested else _PALE for speed in found.speeds]
    bars = axes.bar(places, [speed.samples for speed in found.speeds], color=colours, width=0.6)
    axes.bar_label(bars, [f"waits {speed.waited:.0%}" for speed in found.speeds], fontsize=8, color=_INK, padding=2)
    axes.axhline(found.compute, color=_BLUE, ls="--", lw=1, label="with batches that are there already")
    axes.set_xticks(places, [str(speed.workers) for speed in found.speeds])
    axes.set_ylim(0, 1.25 * max([found.compute, *(speed.samples for speed in found.speeds)]))
    axes.set_xlabel(f"loader processes (data.num_workers), of {found.cpus} CPUs; suggested: {found.suggested}")
    axes.set_ylabel("training samples a second")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def draw_batch(
    probes: Sequence[Probe], speeds: Mapping[int, float], *, limit: int, free: int, size: int, title: str
) -> Figure:
    """Draw the memory that steps need over the size of their batches, and the samples a second.

    Args:
        probes: The sizes whose memory was measured.
        speeds: Samples a second by size; none where the speed was not measured.
        limit: Bytes that may be used.
        free: Bytes that are free.
        size: The size that is suggested.
        title: Heading.
    """
    figure, axes = _figure(title)
    measured = sorted((probe.size, probe.peak) for probe in probes if probe.peak is not None)
    most = max(peak for _, peak in measured)
    unit, scale = _UNITS[most < 2 * _UNITS[0][1]]
    lines = axes.plot([at for at, _ in measured], [peak / scale for _, peak in measured], "o-", color=_BLUE)
    lines[0].set_label("needed")
    for at in (probe.size for probe in probes if probe.peak is None):
        lines.append(axes.axvline(at, color=_FAINT, lw=3, label=f"{at}: does not fit"))
    top = min(1.1 * free, 1.6 * most)  # bounds far above are told by the legend alone
    lines.append(axes.axhline(free / scale, color=_INK, lw=1, ls=":", label=f"free: {free / scale:,.3g} {unit}"))
    lines.append(axes.axhline(limit / scale, color=_INK, lw=1, label=f"may be used: {limit / scale:,.3g} {unit}"))
    lines.append(axes.axvline(size, color=_ORANGE, label=f"suggested: {size}"))
    axes.set_xscale("log", base=2)
    ticks = sorted({*speeds} | {at for at, _ in measured})
    axes.set_xticks(ticks, [str(at) for at in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(0, top / scale)
    axes.set_xlabel("samples of a batch (data.batch_size)")
    axes.set_ylabel(f"memory [{unit}]")
    if speeds:
        right = axes.twinx()
        lines += right.plot([*speeds], [*speeds.values()], "s--", color=_GREEN, label="samples a second")
        right.set_ylim(0, 1.25 * max(speeds.values()))
        right.set_ylabel("training samples a second", color=_GREEN)
    axes.legend(lines, [str(line.get_label()) for line in lines], frameon=False, fontsize=8, loc="best")
    return figure


def write_png(figure: Figure, path: Path) -> None:
    """Write a picture as a PNG file; its folder is made where it is missing."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())


def _figure(title: str) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK)
    axes.grid(color=_FAINT, lw=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes
