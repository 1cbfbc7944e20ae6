"""A comparison to be read: as tables for the terminal, as Markdown, as CSV, and as a page of HTML."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.common.csv_lines import CsvWriter
from lightkit.common.ranking import LEAST_SEEDS, LEAST_SIGNS, MOST_RUNS, UNDECIDED
from lightkit.compare.comparison import Cell, RunComparison
from lightkit.compare.grouping import RunCurve, read_curves, shown
from lightkit.runs.filters import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lightkit.compare.seeds import SeedTest

_MOST_CURVES = 60
"""Groups whose curves the page draws: the first ones."""
_TEMPLATE = Path(__file__).with_name("page.html")
_DIGITS = 6


@dataclass
class TextTable:
    """A table of text.

    Attributes:
        title: What stands above it; empty for the main one.
        heads: Heads of the columns.
        rows: Cells.
        right: Numbers of the columns that are aligned to the right.
        notes: What stands below it.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    right: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def tables(comparison: RunComparison) -> list[TextTable]:
    """Return what a reader is shown: the groups, the tests over seeds, those over rows."""
    shown_tables = [_groups(comparison)]
    if comparison.seed_tests:
        shown_tables.append(_over_seeds(comparison))
    if comparison.split:
        shown_tables += _over_rows(comparison)
    return shown_tables


def _groups(comparison: RunComparison) -> TextTable:
    names = comparison.names
    counts = {len(row.group.runs) for row in comparison.rows}
    heads = [names[key] for key in comparison.keys] or ["run"]
    marks = [""] if comparison.baseline is not None else []
    table = TextTable("", [*marks, *heads, "n"], [])
    for name in comparison.metrics:
        table.heads += [name, "Δ"] if comparison.baseline is not None else [name]
    for row in comparison.rows:
        cells = [shown(key, row.group.values[key]) if key in row.group.values else "–" for key in comparison.keys]
        is_baseline = ["baseline" if row.label == comparison.baseline else ""] if marks else []
        line = [*is_baseline, *(cells or [row.label]), str(len(row.group.runs))]
        for name in comparison.metrics:
            line += [value(row.cells[name])]
            line += [signed(row.cells[name].delta)] if marks else []
        table.rows.append(line)
    table.right = list(range(len(marks) + len(heads), len(table.heads)))
    best = any(cell.best for row in comparison.rows for cell in row.cells.values())
    spread = ", ± standard deviation over n seeds" if counts != {1} else ""
    table.notes += [f"* best mean, which may be chance{spread}"] if best else []
    stars = [{name.partition("/")[0] for name, cell in row.cells.items() if cell.best} for row in comparison.rows]
    if {"test"} in stars and {"val"} in stars:
        table.notes += ["the best of test rows is another one: a choice by them has to be measured on new rows"]
    table.notes += comparison.notes
    return table


def value(cell: Cell) -> str:
    """Write a metric of a group: mean, deviation, and a star where it is best; as many columns for all."""
    if cell.mean is None:
        return "–"
    spread = f" ± {cell.sd:.4f}" if cell.sd is not None else ""
    return f"{cell.mean:.4f}{spread}{' *' if cell.best else '  '}"


def signed(value: float | None) -> str:
    """Write a difference with its sign; nothing for None."""
    return "" if value is None else f"{value:+.4f}"


def p_value(p: float | None) -> str:
    """Write a p-value; a dash where there was no test."""
    if p is None:
        return "–"
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}"


def _over_seeds(comparison: RunComparison) -> TextTable:
    heads = ["against the baseline", "metric", "test", "n", "Δ", "95 %", "t", "Wilcoxon", "sign", "t (Holm)", ""]
    table = TextTable(f"by seed, against {comparison.baseline}", [*heads, "n needed"], [], [*range(3, 10), 11])
    for entry in comparison.seed_tests:
        test = entry.test
        line = [entry.label, entry.metric, "–" if test is None else "paired" if test.paired else "unpaired"]
        line += ["0", "", "–"] if test is None else [str(test.n), signed(test.mean), _interval(test.low, test.high)]
        line += [p_value(getattr(test, name, None)) for name in ("t", "wilcoxon", "sign")]
        table.rows.append([*line, p_value(entry.p_holm), entry.verdict, _needed(entry)])
    table.notes += _seed_notes(comparison.seed_tests, len(comparison.rows) - 1)
    return table


def _needed(entry: SeedTest) -> str:
    if entry.needed is None:
        return f"> {MOST_RUNS}" if entry.verdict in UNDECIDED else ""
    return f"≥ {entry.needed}" if entry.p_holm is None else str(entry.needed)


def _seed_notes(entries: Sequence[SeedTest], others: int) -> list[str]:
    """Say which tests there are, and which there are not."""
    notes, tests = list[str](), [entry.test for entry in entries if entry.test is not None]
    if others > 1:
        notes.append(f"p-values are two-sided; Holm: adjusted to {others} comparisons with the baseline")
    if any(test.t is None for test in tests):
        notes.append(f"fewer than {LEAST_SEEDS} seeds say nothing about chance: train with seed=0,1,2,3,4")
    if any(test.t is not None and test.paired and test.sign is None for test in tests):
        notes.append(f"Wilcoxon and sign need {LEAST_SIGNS} pairs that differ")
    if any(entry.p_holm is not None and entry.verdict in UNDECIDED for entry in entries):
        notes.append("n needed: with so many in all the t-test finds a difference as large as this in 80 % of cases")
    if not all(entry.same_seeds for entry in entries):
        notes.append(
            "groups have finished runs of other seeds than the baseline: Δ in the first table is of all runs, here of "
            f"the seeds of both (paired), or where these are fewer than {LEAST_SEEDS} of all (unpaired, Welch's test)"
        )
    return notes


def _over_rows(comparison: RunComparison) -> list[TextTable]:
    heads = ["against the baseline", "loss", "seeds", "rows", "Δ", "95 %", "p", "p (Holm)"]
    table = TextTable(
        f"by row of {comparison.split}, mean loss, against {comparison.baseline}", heads, [], list(range(2, 8))
    )
    for entry in comparison.row_tests:
        test = entry.test
        line = [entry.label, entry.loss, str(entry.seeds), str(test.n), signed(test.mean)]
        table.rows.append([*line, _interval(test.low, test.high), p_value(test.p), p_value(entry.p_holm)])
    table.notes.append("smaller losses are better; rows stand for other rows, not for other seeds")
    of_losses = [table] if table.rows else []
    heads = ["against the baseline", "seed", "only it is right", "only baseline is", "p", "p (Holm)"]
    tests = TextTable(
        f"by row of {comparison.split}, McNemar, against {comparison.baseline}", heads, [], [1, 2, 3, 4, 5]
    )
    for one in comparison.seed_tables:
        counts = [str(one.test.gained), str(one.test.lost)]
        seed = "" if one.seed is None else str(one.seed)
        tests.rows.append([one.label, seed, *counts, p_value(one.test.p), p_value(one.p_holm)])
    if any(one.test.gained + one.test.lost < LEAST_SIGNS for one in comparison.seed_tables):
        tests.notes.append(f"McNemar's p can be below 0.05 from {LEAST_SIGNS} rows on that only one of both has right")
    return [*of_losses, tests] if tests.rows else of_losses


def _interval(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:+.4f} … {high:+.4f}"


def markdown(comparison: RunComparison) -> str:
    """Write all tables as Markdown."""
    parts = list[str]()
    for table in tables(comparison):
        parts += [f"**{_escaped([table.title])[0]}**\n"] if table.title else []
        rule = ["---:" if place in table.right else "---" for place in range(len(table.heads))]
        parts += [_line(_escaped(table.heads)), _line(rule), *(_line(_escaped(row)) for row in table.rows), ""]
        parts += [f"{note}  " for note in table.notes] + [""] if table.notes else []
    return "\n".join(parts).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(cells: Iterable[str]) -> list[str]:
    signs = {ord(sign): f"\\{sign}" for sign in "\\|*_<`["}
    return [" ".join(cell.translate(signs).split()) for cell in cells]


def as_csv(comparison: RunComparison) -> str:
    """Write the groups as CSV, a line each, with every figure in a column of its own."""
    heads = ["group", *comparison.keys, "runs"]
    for name in comparison.metrics:
        heads += [f"{name} {what}" for what in ("mean", "sd", "n", "best", "delta")]
    written = io.StringIO()
    writer = CsvWriter(written)
    writer.row(heads)
    for row in comparison.rows:
        line: list[object] = [row.label]
        line += [shown(key, row.group.values[key]) if key in row.group.values else "" for key in comparison.keys]
        line.append(len(row.group.runs))
        for name in comparison.metrics:
            cell = row.cells[name]
            line += [cell.mean, cell.sd, cell.n, int(cell.best), cell.delta]
        writer.row(line)
    return written.getvalue()


def html_page(comparison: RunComparison, title: str) -> str:
    """Write one HTML file that needs nothing else: a table to sort, curves, parallel coordinates.

    Args:
        comparison: What is shown.
        title: Its heading.
    """
    from lightkit.common.drawing import embedded, render

    content = {
        **comparison.plain(),
        "names": comparison.names,
        "shown": [{key: shown(key, value) for key, value in row.group.values.items()} for row in comparison.rows],
        "curves": [
            {name: _rounded(asdict(curve)) for name, curve in read_curves(row.group).items()}
            for row in comparison.rows[:_MOST_CURVES]
        ],
        "tests": [asdict(table) for table in tables(comparison)[1:]],
        "title": title,
    }
    return render(_TEMPLATE, title=title, data=embedded(content))


def _rounded(curve: dict[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {
        name: [float(f"{each:.{_DIGITS}g}") if isinstance(each, float) else each for each in values]
        for name, values in curve.items()
    }


_MOST_LINES = 60
_NAMED = 12
"""Groups that a legend names."""
_PANELS, _WIDTH = 6, 13.0
_LOGARITHMIC = 20.0
"""Largest value of a key over its smallest from which on its axis is logarithmic."""


def draw_png(comparison: RunComparison, title: str) -> bytes:
    """Draw the picture, as a PNG file.

    Args:
        comparison: What is shown.
        title: Its heading.
    """
    from lightkit.common.drawing import empty_figure, png, shades

    curves = [read_curves(row.group) for row in comparison.rows[:_MOST_LINES]]
    logged = dict.fromkeys(name for each in curves for name in each)
    wanted = [*comparison.metrics, *(name for name in logged if name.startswith("val/")), "train/loss"]
    names = [name for name in dict.fromkeys(wanted) if name in logged][:_PANELS]
    across = 2 if len(names) in (2, 4) else 3
    lines, has_axes = math.ceil(len(names) / across), bool(comparison.keys) and len(comparison.rows) > 1
    heights = [3.2] * lines + [3.6] * has_axes or [1.0]
    figure = empty_figure(_WIDTH, sum(heights) + 0.6, title)
    grid = figure.add_gridspec(len(heights), 6, height_ratios=heights)
    colours = shades(len(comparison.rows))
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
    return png(figure)


def _draw_curves(axes: Axes, name: str, curves: Sequence[RunCurve | None], colours: Sequence[Any]) -> None:
    from lightkit.common.drawing import INK, ruled, style

    style(axes)
    ruled(axes)
    for curve, colour in reversed([*zip(curves, colours)]):  # the best on top
        if curve is None:
            continue
        if max(curve.seeds) > 1:
            low = [mean - sd for mean, sd in zip(curve.means, curve.deviations)]
            high = [mean + sd for mean, sd in zip(curve.means, curve.deviations)]
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(curve.steps, curve.means, color=colour, linewidth=1.5)
    axes.set_title(name, fontsize=10, loc="left", color=INK)
    axes.set_xlabel("step")


def _draw_parallel(axes: Axes, comparison: RunComparison) -> None:
    """Draw a line for each group through the keys and the metrics, coloured by the first metric."""
    from matplotlib import colormaps

    from lightkit.common.drawing import FAINT, INK, bare

    names = [*comparison.keys, *comparison.metrics]
    scales = [_heights(comparison, name) for name in names]
    tint = scales[len(comparison.keys)][0] if comparison.metrics else [None] * len(comparison.rows)
    mode = next(iter(comparison.metrics.values()), None)
    for row, colour in reversed([*enumerate(tint)]):
        points = [(place, heights[row]) for place, (heights, _) in enumerate(scales) if heights[row] is not None]
        share = None if colour is None else 1 - colour if mode == "min" else colour
        shade = FAINT if share is None else colormaps["viridis"](0.95 * share)
        axes.plot(*zip(*points), color=shade, linewidth=1.6, alpha=0.85)
    written: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 7.5}
    written["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    for place, (_, marks) in enumerate(scales):
        axes.axvline(place, color=INK, linewidth=0.8)
        for height, text in marks:
            axes.annotate(text, (place, height), (-6, 0), **written)
    short = comparison.names
    axes.set_xticks(range(len(names)), [short.get(name, name) for name in names], fontsize=9, fontweight="bold")
    axes.xaxis.tick_top()
    axes.set(yticks=[], xlim=(-0.35, len(names) - 0.85), ylim=(-0.04, 1.04))
    bare(axes)


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
