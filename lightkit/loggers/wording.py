"""How numbers and progress are put into words on the console."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from lightkit.loggers.base import Progress

T = TypeVar("T")
_VALUES_SHOWN = 6
"""Values of a split in one line; the rest is in TensorBoard and metrics.jsonl."""


def number(value: Any, *, exact: bool = False) -> str:
    """Write a value with four significant digits, as short as it can be; anything but a float as it is.

    Args:
        value: The value.
        exact: Write whole numbers below 100 with four decimals, too, as in a column.
    """
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if value.is_integer() and abs(value) < 1e6:
        return f"{value:.4f}" if exact and abs(value) < 100 else f"{value:.1f}"
    return f"{value:.4f}" if 0.1 <= abs(value) < 100 else f"{value:.4g}"


def shortened(items: Sequence[T], ranks: Sequence[Any], most: int) -> list[T]:
    """Return the items of the lowest ranks in their order where a table has room for so many lines, one for the rest.

    Args:
        items: What a table shows, a line each.
        ranks: The rank of each.
        most: Lines.
    """
    count = len(items) if len(items) <= most else max(1, most - 1)
    return [items[at] for at in sorted(sorted(range(len(items)), key=ranks.__getitem__)[:count])]


def duration(seconds: float) -> str:
    """Write hours, minutes and seconds: `0:07`, `12:30`, `3:05:00`, `2d 4h`."""
    whole = max(0, round(seconds))
    if whole >= 86_400:
        return f"{whole // 86_400}d {whole % 86_400 // 3600}h"
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(samples_per_second: float) -> str:
    """Write a throughput: `870 samples/s`, `12.3k samples/s`; empty when not known."""
    if not samples_per_second > 0:
        return ""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if samples_per_second >= size:
            return f"{samples_per_second / size:.1f}{unit} samples/s"
    return f"{samples_per_second:.0f} samples/s"


def percent(progress: Progress) -> float:
    """Return the share of the whole run that is done, 0 to 1."""
    return min(1.0, progress.step / progress.total_steps) if progress.total_steps else 0.0


def position(progress: Progress) -> str:
    """Say where the run is: `epoch 3/10, step 120/600`."""
    return f"epoch {of_total(progress.epoch, progress.epochs)}, step {of_total(progress.step, progress.total_steps)}"


def left(progress: Progress) -> str:
    """Write the time to the end, empty when not known."""
    return "" if progress.eta_seconds is None else f"{duration(progress.eta_seconds)} left"


def highlights(progress: Progress) -> list[str]:
    """Choose the newest values worth a glance: loss, validation, learning rate."""
    values = progress.values
    shown = [f"loss {number(values[name])}" for name in ("train/loss_step", "train/loss") if name in values][:1]
    shown += [f"{name} {number(value)}" for name, value in values.items() if name.startswith("val/")][:_VALUES_SHOWN]
    rates = [value for name, value in values.items() if name.startswith("lr/")]
    if rates:
        low, high = min(rates), max(rates)
        shown.append(f"lr {high:.3g}" if low == high else f"lr {low:.3g} to {high:.3g}")
    return shown


def progress_line(progress: Progress) -> str:
    """Write one plain line: `[epoch 3/10, step 120/600] 20 %, loss 0.31, 12.3k samples/s, 0:42 left`."""
    facts = [f"{percent(progress):.0%}"]
    if progress.phase != "train":
        facts.append(f"{progress.phase} {progress.batch}/{progress.batches}")
    facts += [*highlights(progress), rate(progress.samples_per_second), left(progress)]
    return f"[{position(progress)}] " + ", ".join(fact for fact in facts if fact)


def summary_line(values: Mapping[str, float], *, step: int, epoch: int) -> str:
    """Write a line for whole splits: `[epoch 3, step 180] train: loss 0.31 | val: loss 0.35, accuracy 0.91`.

    Args:
        values: Values by name.
        step: Optimizer steps taken.
        epoch: Epochs finished.
    """
    splits: dict[str, list[str]] = {}
    for name, value in values.items():
        split, _, rest = name.partition("/")
        splits.setdefault(split, []).append(f"{rest} {number(float(value))}")
    for split, shown in splits.items():
        if len(shown) > _VALUES_SHOWN:
            splits[split] = [*shown[:_VALUES_SHOWN], f"{len(shown) - _VALUES_SHOWN} more"]
    parts = [f"{split}: {', '.join(shown)}" for split, shown in splits.items()]
    return f"[epoch {epoch}, step {step}] " + " | ".join(parts)


def fitting(sizes: Sequence[int], room: int, *, beside: Callable[[int], int]) -> int:
    """Return how many of the first things fit into some columns.

    Args:
        sizes: Columns that each takes.
        room: Columns there are.
        beside: Columns that the note of so many left out takes.
    """
    counts = (
        count
        for count in range(len(sizes), 0, -1)
        if sum(sizes[:count]) + (beside(len(sizes) - count) if count < len(sizes) else 0) <= room
    )
    return next(counts, 0)


def wrapped(text: str, width: int) -> str:
    """Break lines between words and indent what goes on; words that are too long, such as paths, stay in one piece.

    Args:
        text: One line or several.
        width: Columns there are; 0 when not known, which breaks nothing.
    """
    if width <= 0:
        return text
    lines = (
        textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for parts in lines for part in parts)


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table of aligned columns without any drawing.

    Args:
        title: Headline; empty for none.
        columns: Heads of the columns; all empty for none.
        rows: Cells as text.
    """
    lines = [list(columns), *map(list, rows)] if any(columns) else [list(row) for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))] if lines else []
    sides = [*numeric(rows), *[False] * len(columns)]
    body = [
        "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, sides))
        for line in lines
    ]
    return "\n".join(([title] if title else []) + [f"  {line.rstrip()}" for line in body])


def numeric(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Tell which columns hold nothing but numbers, and so are aligned to the right."""
    return [any(column) and all(not cell or _is_number(cell) for cell in column) for column in zip(*rows)]


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True


def of_total(value: int, total: int | None) -> str:
    """Write `3/10`, or `3` where the total is not known."""
    return f"{value}/{total}" if total else str(value)
