"""What is seen while a run goes on: a live bar on a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from lightkit.common.errors import UserError
from lightkit.common.text import in_one_line, visible
from lightkit.loggers.base import Logger, Progress
from lightkit.loggers.wording import fitting, number, of_total, plain_table, progress_line, wrapped

if TYPE_CHECKING:
    from lightkit.loggers.bar import Bar

STYLES = ("auto", "bar", "lines", "quiet")
_SECONDS_BETWEEN_EPOCHS = 1.0
_SECONDS_BETWEEN_FRAMES = 0.2
_WIDTH, _NARROWEST_CELL, _ROWS_UNDER_A_HEAD = 100, 8, 50
"""Columns of a line where it is not known how many there are; those of a number; rows after which heads come again."""


class EpochTable:
    """Writes epochs as lines of a table, one by one: heads before the first, and again where they change.

    No cell is empty, so that a log can be taken apart by columns. The losses are shown first of all, then the other
    values of validation, then those of training: as many as there is room for.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._heads: list[str] = []
        self._widths: list[int] = []
        self._rows = 0

    def lines(self, values: Mapping[str, float], place: Sequence[str], width: int) -> list[str]:
        """Return the line of an epoch, with that of the heads where it is wanted.

        Args:
            values: Values of training and validation by name.
            place: Epoch and step.
            width: Columns there are.
        """
        known = dict.fromkeys([*self._names, *values])
        self._names = sorted(known, key=lambda name: name.startswith("val/"))
        first = sorted(self._names, key=lambda name: (not name.endswith("/loss"), name.startswith("train/")))
        sizes = [max(_NARROWEST_CELL, len(name)) + 2 for name in first]
        room = width - sum(max(len(own), 5) + 2 for own in place)
        count = fitting(sizes, room, beside=lambda rest: len(f"({rest} more)") + 2)
        shown = [name for name in self._names if name in first[: max(1, count)]]
        rest = len(first) - count if count else 0
        heads = ["epoch", "step", *shown, *([f"({rest} more)"] if rest else [])]
        cells = [*place, *(number(float(values[name]), exact=True) if name in values else "-" for name in shown)]
        anew, self._rows = heads != self._heads or self._rows >= _ROWS_UNDER_A_HEAD, self._rows + 1
        if anew:
            self._heads, self._rows = heads, 1
            self._widths = [max(len(head), _NARROWEST_CELL if "/" in head else 5) for head in heads]
        self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, [*cells, ""])][: len(heads)]
        return ["  ".join(map(str.rjust, row, self._widths)) for row in ([heads] if anew else []) + [cells]]


class ConsoleLogger(Logger):
    """Progress, messages and tables for whoever watches.

    Control characters go to a terminal only: anywhere else `bar` becomes `lines`. A console that breaks (a closed pipe,
    a lost terminal) falls silent instead of ending the run.

    Args:
        style: `bar`, `lines`, `quiet` (tables only) or `auto`: the bar on a terminal.
        every_seconds: Seconds between two progress lines.
        stream: Where to write; None takes standard output.

    Raises:
        UserError: There is no such style.
    """

    def __init__(self, style: str = "auto", every_seconds: float = 5.0, stream: TextIO | None = None) -> None:
        if style not in STYLES:
            raise UserError("unknown style", argument="style", received=style, choices=STYLES)
        self.stream: TextIO | None = sys.stdout if stream is None else stream
        draws = os.environ.get("TERM", "") not in ("dumb", "unknown")
        live = style in ("auto", "bar") and self.stream is not None and self.stream.isatty() and draws
        self.style = style if style == "quiet" else "bar" if live else "lines"
        self.every_seconds = every_seconds
        self._bar: Bar | None = None
        self._next_line = time.monotonic() + every_seconds
        self._next_epoch_line = self._next_frame = 0.0
        self._progress: Progress | None = None
        self._pending: tuple[int, int, dict[str, float]] | None = None
        self._epochs = EpochTable()

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Print values of whole splits, epochs as rows of a table; those of training wait for their validation."""
        shown = {name: value for name, value in values.items() if not name.endswith("loss_step")}
        if self.style == "quiet" or not any(name.endswith("/loss") for name in shown):
            return
        if self._pending is not None and self._pending[0] == step:
            shown = {**self._pending[2], **shown}
            self._pending = None
        self._say_pending()
        self._pending = (step, epoch, shown)
        if any(not name.startswith("train/") for name in shown):
            self._say_pending()

    def progress(self, progress: Progress) -> None:
        """Move the bar, or print a line now and then."""
        self._progress = progress
        if self.style == "quiet":
            return
        if progress.phase == "train":
            self._say_pending()
        self._redraw(lambda bar: bar.show(progress), lambda: progress_line(progress))

    def _redraw(self, draw: Callable[[Bar], None], line: Callable[[], str]) -> None:
        """Draw on a terminal, elsewhere print a line, where enough time has passed since the last one."""
        now = time.monotonic()
        if self.style == "bar" and now >= self._next_frame:
            self._next_frame = now + _SECONDS_BETWEEN_FRAMES
            self._guarded(lambda: draw(self._live()))
        elif self.style == "lines" and now >= self._next_line:
            self._say(line())

    def live_table(self, make: Callable[[int], tuple[str, Sequence[str], Sequence[Sequence[str]]]]) -> None:
        """Redraw a table in place of the bar; without a terminal, print its title now and then.

        Args:
            make: Makes title, heads and cells of the table, with at most so many rows.
        """
        self._redraw(lambda bar: bar.show_table(make), lambda: make(0)[0])

    def message(self, text: str) -> None:
        """Print a line; on a terminal above the bar."""
        if self.style != "quiet":
            self._say_pending()
            self._say(text)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table; on a terminal with lines and colours."""
        self._say_pending()
        cells = [[in_one_line(cell if isinstance(cell, str) else number(cell)) for cell in row] for row in rows]
        if self.style == "bar":
            self._guarded(lambda: self._live().table(title, columns, cells))
        else:
            self._say(plain_table(title, columns, cells))

    def close(self) -> None:
        """Print what waits and take the bar away."""
        self._say_pending(last=True)
        if self._bar is not None:
            bar, self._bar = self._bar, None
            self._guarded(bar.close)

    def _say_pending(self, *, last: bool = False) -> None:
        """Print the waiting line of an epoch; above a bar, which shows the newest values, not of all short epochs."""
        if self._pending is None:
            return
        (step, epoch, values), self._pending = self._pending, None
        now = time.monotonic()
        is_last = last or (self._progress is not None and step >= self._progress.total_steps)
        if self.style == "bar" and now < self._next_epoch_line and not is_last:
            return
        self._next_epoch_line = now + _SECONDS_BETWEEN_EPOCHS
        newest, width = self._progress, self._columns() or _WIDTH
        if any(name.startswith(("train/", "val/")) for name in values):
            epochs, steps = (newest.epochs, newest.total_steps) if newest else (None, None)
            counts = (epoch, epochs), (step, steps)
            place = [of_total(one, total).rjust(len(of_total(total or 0, total))) for one, total in counts]
            lines = self._epochs.lines(values, place, width)
        else:  # measured once, such as a test
            split = next(iter(values)).partition("/")[0]
            facts = [f"{name.partition('/')[2]} {number(float(value))}" for name, value in values.items()]
            room, sizes = width - 8, [len(fact) + 2 for fact in facts]
            count = max(1, fitting(sizes, room, beside=lambda rest: len(f"{rest} more")))
            facts[count:] = [f"{len(facts) - count} more"] if count < len(facts) else []
            lines = [f"{split:<7} {', '.join(facts)}"]
        self._say("\n".join(lines))

    def _columns(self) -> int:
        """Return how wide the terminal is; 0 where that is not known."""
        if self.style == "bar" and self.stream is not None:
            with suppress(OSError, ValueError):  # the terminal may have gone
                return os.get_terminal_size(self.stream.fileno()).columns
        return 0

    def _live(self) -> Bar:
        if self._bar is None:
            from lightkit.loggers.bar import Bar  # rich takes a tenth of a second to import

            self._bar = Bar(self.stream)
        return self._bar

    def _say(self, text: str) -> None:
        self._next_line = time.monotonic() + self.every_seconds
        text = wrapped(visible(text), self._columns())
        if self._bar is not None:
            self._guarded(lambda: self._live().say(text))
        else:
            self._guarded(lambda: _write(self.stream, text))

    def _guarded(self, write: Any) -> None:
        """Fall silent where the console can't be written to: that must not cost the run."""
        if self.stream is None:
            return
        try:
            write()
        except (OSError, ValueError):
            self.stream, self._bar, self.style = None, None, "quiet"


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(f"{text}\n")
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(f"{text}\n".encode(encoding, "replace").decode(encoding))
    stream.flush()
