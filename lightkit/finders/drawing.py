"""Pictures of what finders saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from lightkit.common.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PALE, add_legend, new_figure, ruled
from lightkit.diagnostics.memory import Probe
from lightkit.finders.lr import FoundRate, smooth
from lightkit.finders.speeds import FoundWorkers

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))


def draw_lr(found: FoundRate, title: str) -> Figure:
    """Draw the losses over the rates, smoothed and as they were, with the rate that is suggested.

    Args:
        found: What was found.
        title: Heading.
    """
    figure, axes = new_figure(7.0, 4.0, title)
    ruled(axes)
    rates, losses = [point.lr for point in found.points], [point.loss for point in found.points]
    smoothed, seen, best = smooth(losses), found.range, found.suggestion
    trained = sorted(training for training in found.trainings if training.losses)
    axes.plot(rates, losses, ".", color=PALE, label="loss of a batch")
    axes.plot(rates, smoothed, color=BLUE, label="smoothed")
    axes.set_xscale("log")
    top = max(smoothed[: max(2, len(smoothed) // 10)])
    low = min([*smoothed, *(training.loss for training in trained)])
    axes.set_ylim(min(low, *losses) - 0.05 * (top - low), top + 0.35 * (top - low or 1.0))
    if seen is not None:
        axes.plot([seen.lowest.lr], [seen.lowest.loss], "o", color=GREEN, label=f"lowest: {seen.lowest.lr:.2g}")
        if seen.harmful:
            axes.axvspan(seen.harmful, rates[-1], color=FAINT, alpha=0.5, lw=0, label=f"harm: from {seen.harmful:.2g}")
    if trained:
        ends = [training.lr for training in trained], [training.loss for training in trained]
        axes.plot(*ends, "s--", color=ORANGE, lw=1, ms=4, label=f"end of trainings of {found.short} steps")
    if best is not None:
        axes.axvline(best.lr, color=ORANGE, label=f"suggested: {best.lr:g}")
    axes.axvline(found.configured, color=INK, lw=1, ls=":", label=f"optim.lr: {found.configured:g}")
    axes.set(xlabel="learning rate (optim.lr)", ylabel="training loss")
    add_legend(axes, loc="upper left" if best is None else "lower left")
    return figure


def draw_workers(found: FoundWorkers, title: str) -> Figure:
    """Draw the samples a second over the number of loader processes, with what the computation could take.

    Args:
        found: What was found.
        title: Heading.
    """
    figure, axes = new_figure(7.0, 4.0, title)
    ruled(axes)
    places = list(range(len(found.speeds)))
    colours = [ORANGE if speed.workers == found.suggested else PALE for speed in found.speeds]
    bars = axes.bar(places, [speed.samples for speed in found.speeds], color=colours, width=0.6)
    axes.bar_label(bars, [f"waits {speed.waited:.0%}" for speed in found.speeds], fontsize=8, color=INK, padding=2)
    axes.axhline(found.compute, color=BLUE, ls="--", lw=1, label="with batches that are there already")
    axes.set_xticks(places, [str(speed.workers) for speed in found.speeds])
    axes.set_ylim(0, 1.25 * max([found.compute, *(speed.samples for speed in found.speeds)]))
    workers = f"loader processes (data.num_workers), of {found.cpus} CPUs; suggested: {found.suggested}"
    axes.set(xlabel=workers, ylabel="training samples a second")
    add_legend(axes, loc="upper right")
    return figure


def draw_rows(curve: Mapping[int, Any], laws: Sequence[Callable[[float], float]], *, name: str, title: str) -> Figure:
    """Draw a metric over the number of training rows, and laws of it up to twice as many.

    Args:
        curve: `mean`, and the ends `low` and `high` of its interval, by the number of rows.
        laws: Give the metric for a number of rows, one for each seed.
        name: Of the metric.
        title: Heading.
    """
    figure, axes = new_figure(7.0, 4.0, title)
    ruled(axes)
    means, *bars = zip(*((at.mean, at.mean - at.low, at.high - at.mean) for at in curve.values()))
    ahead = [min(curve) * (2 * max(curve) / min(curve)) ** (place / 100) for place in range(101)]
    axes.errorbar([*curve], means, bars, fmt="o", color=BLUE, capsize=3)
    axes.plot(ahead, [[law(size) for law in laws] for size in ahead], color=ORANGE, lw=0.8)
    axes.set(xscale="log", xlabel="training rows; lines: a power law of each seed", ylabel=f"{name}, mean and 95 %")
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
    figure, axes = new_figure(7.0, 4.0, title)
    ruled(axes)
    measured = sorted((probe.size, probe.peak) for probe in probes if probe.peak is not None)
    most = max(peak for _, peak in measured)
    unit, scale = _UNITS[most < 2 * _UNITS[0][1]]
    lines = axes.plot([at for at, _ in measured], [peak / scale for _, peak in measured], "o-", color=BLUE)
    lines[0].set_label("needed")
    for at in (probe.size for probe in probes if probe.peak is None):
        lines.append(axes.axvline(at, color=FAINT, lw=3, label=f"{at}: does not fit"))
    top = min(1.1 * free, 1.6 * most)  # bounds far above are told by the legend alone
    lines.append(axes.axhline(free / scale, color=INK, lw=1, ls=":", label=f"free: {free / scale:,.3g} {unit}"))
    lines.append(axes.axhline(limit / scale, color=INK, lw=1, label=f"may be used: {limit / scale:,.3g} {unit}"))
    lines.append(axes.axvline(size, color=ORANGE, label=f"suggested: {size}"))
    axes.set_xscale("log", base=2)
    ticks = sorted({*speeds} | {at for at, _ in measured})
    axes.set_xticks(ticks, [str(at) for at in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set(ylim=(0, top / scale), xlabel="samples of a batch (data.batch_size)", ylabel=f"memory [{unit}]")
    if speeds:
        right = axes.twinx()
        lines += right.plot([*speeds], [*speeds.values()], "s--", color=GREEN, label="samples a second")
        right.set_ylim(0, 1.25 * max(speeds.values()))
        right.set_ylabel("training samples a second", color=GREEN)
    add_legend(axes, handles=lines, loc="best")
    return figure
