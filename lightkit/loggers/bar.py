"""The live display of a terminal, drawn by rich: a bar or a table at the bottom, everything else above it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TextIO

from rich import box
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightkit.common.text import in_one_line
from lightkit.loggers.base import Progress
from lightkit.loggers.wording import highlights, left, numeric, percent, rate

_NARROW = 72
"""Columns below which the throughput is left out."""
_SMALLEST_BAR = 8
_AROUND = 8
"""Lines of a terminal that a live table leaves to its own frame and title, and to what stands above it."""


class Bar:
    """A progress bar with the newest values below it.

    It is redrawn when told to and by no thread of its own: that would take time from the training loop.

    Args:
        stream: A terminal.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.console = Console(file=stream, highlight=False)
        self._stream = stream
        self._live: Live | None = None
        self._draw: Callable[[], RenderableType] = str

    def __rich__(self) -> RenderableType:
        """Render the bar anew whenever rich draws it: the terminal may have another width than last time."""
        return self._draw()

    def show(self, progress: Progress) -> None:
        """Draw how far the run is."""
        self._redraw(lambda: self.render(progress))

    def show_table(self, make: Callable[[int], tuple[str, Sequence[str], Sequence[Sequence[str]]]]) -> None:
        """Draw a table, with as many rows as there is room for.

        Args:
            make: Makes title, heads and cells of the table, with at most so many rows.
        """

        def draw() -> RenderableType:
            title, columns, rows = make(max(1, self.console.height - _AROUND))
            headline = Text(title, style="bold", no_wrap=True, overflow="ellipsis")
            return Group(headline, _table(columns, rows))

        self._redraw(draw)

    def _redraw(self, draw: Callable[[], RenderableType]) -> None:
        self._measure()
        self._draw = draw
        if self._live is None:
            self._live = Live(self, console=self.console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._live.start()
        self._live.refresh()

    def render(self, progress: Progress) -> RenderableType:
        """Render the two lines, no wider than the terminal."""
        width = self.console.width - 1
        before = f"epoch {progress.epoch}/{progress.epochs}" if progress.epochs else f"epoch {progress.epoch}"
        if progress.phase != "train":
            before = f"{before} {progress.phase} {progress.batch}/{progress.batches}"
        pace = rate(progress.samples_per_second) if width >= _NARROW else ""
        facts = (f"{progress.step}/{progress.total_steps}", pace, left(progress))
        after = "  ".join(fact for fact in facts if fact)
        room = width - len(before) - len(after) - 2
        values = Text(in_one_line("  ".join(highlights(progress))), style="dim", no_wrap=True, overflow="ellipsis")
        if room < _SMALLEST_BAR:
            line = Text(f"{before}  {percent(progress):.0%}", style="bold", no_wrap=True, overflow="ellipsis")
            line.truncate(width)
            return Group(line, values)
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(
            Text(before, style="bold"),
            ProgressBar(total=max(1, progress.total_steps), completed=progress.step, width=room),
            Text(after),
        )
        return Group(grid, values)

    def _measure(self) -> None:
        """Take the size from this very terminal: rich asks standard input first, and only once per environment."""
        if self._stream is not None:
            size = os.get_terminal_size(self._stream.fileno())
            if size.columns > 0 and size.lines > 0:
                self.console.size = ConsoleDimensions(size.columns, size.lines)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._measure()
        self.console.print(Text(text), soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table above the bar."""
        self._measure()
        if title:  # not the table's own, which is broken where a narrow table ends
            self.console.print(Text(title, style="bold"))
        self.console.print(_table(columns, rows))

    def close(self) -> None:
        """Take the bar away and give the cursor back."""
        if self._live is not None:
            live, self._live = self._live, None
            self._measure()  # it draws once more
            live.stop()


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.ROUNDED, show_header=any(columns), header_style="bold")
    for name, right in zip(columns, [*numeric(rows), *[False] * len(columns)]):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
