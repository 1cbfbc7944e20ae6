"""Plain text on the terminal: lines, complaints, tables, JSON, and what is shown as it goes on."""

from __future__ import annotations

import math
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime

from lightkit.common.errors import UserError
from lightkit.common.text import in_one_line, json_text, visible

SHORTEST = 12
"""Characters that a cell of a table keeps at least."""
USUAL_SECONDS = "2"
"""Seconds between two pictures where `--watch` says nothing else."""
_SHORTEST_SECONDS = 0.1


def say(text: str = "") -> None:
    """Print `text` to standard output, control characters written out."""
    print(visible(text))


def complain(text: str) -> None:
    """Print `text` to standard error, after what went to standard output before it; control characters written out."""
    sys.stdout.flush()
    print(visible(text), file=sys.stderr)


def report(options: Namespace, content: object, text: Callable[[], str | Iterable[str]]) -> int:
    """Print what a command has found, and return its exit status, 0.

    Args:
        options: Of the command, with `json`.
        content: What `--json` prints, in plain values.
        text: Makes what is printed otherwise: a text, or one after the other.
    """
    made = json_text(content) if options.json else text()
    for part in [made] if isinstance(made, str) else made:
        say(part)
    return 0


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    cut: Sequence[int] = (),
    columns: int | None = None,
) -> str:
    """Lay a table out as text with aligned columns, two spaces between them.

    Args:
        titles: Column heads; without any, the table has no head.
        rows: Cells, as many per row as there are titles.
        right: Numbers of the columns that are aligned to the right.
        cut: Numbers of the columns that may be cut where a line does not fit.
        columns: Characters in a line; None for those of the terminal, and as many as it takes elsewhere.
    """
    lines = [list(map(in_one_line, row)) for row in rows]
    size = columns or width()
    if cut and size is not None:
        _fit(lines, [max(map(len, column)) for column in zip(titles, *lines)], cut, size)
    lines = [list(titles), *lines] if titles else lines
    widths = [max(map(len, column)) for column in zip(*lines)]
    texts = []
    for line in lines:
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths))]
        texts.append("  ".join(padded).rstrip())
    return "\n".join(texts)


def width() -> int | None:
    """Return the characters in a line of the terminal; None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fit(lines: Sequence[list[str]], widths: list[int], columns: Sequence[int], width: int) -> None:
    """Cut `columns` of a table's lines, evenly, down to `SHORTEST`; the end of a path or a name tells most."""
    surplus = sum(widths) + 2 * (len(widths) - 1) - width
    while surplus > 0:
        widest = max(columns, key=lambda column: widths[column])
        if widths[widest] <= SHORTEST:
            break
        widths[widest] -= 1
        surplus -= 1
    for line in lines:
        for column in columns:
            cell, size = line[column], widths[column]
            if len(cell) > size:
                line[column] = f"…{cell[len(cell) - size + 1 :]}"


def number(value: object) -> str:
    """Write a measured value for a table: four decimals, other things as they are, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def read_seconds(text: str) -> float:
    """Read the value of `--watch`; without one it is the usual.

    Raises:
        UserError: It is not a time, or too short.
    """
    try:
        seconds = float(text or USUAL_SECONDS)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_SECONDS <= seconds < math.inf:
        expected = f"{_SHORTEST_SECONDS} seconds or more"
        raise UserError("not a time", key="--watch", received=text, expected=expected)
    return seconds


def watch(show: Callable[[], str], seconds: float, *, live: bool, stamped: bool = True) -> None:
    """Show it until it is interrupted: on a terminal in place, elsewhere one after the other.

    Args:
        show: Makes the text.
        seconds: Time between two pictures.
        live: Draw in place, on a screen of its own.
        stamped: Elsewhere, put the time before each; a program that reads them has no use for it.
    """

    def put_plainly(text: str) -> None:
        say(f"{datetime.now():%H:%M:%S}  {text}\n" if stamped else text)
        sys.stdout.flush()

    with _whole_screen() if live else nullcontext(put_plainly) as put:
        try:
            while True:
                put(show())
                time.sleep(seconds)
        except KeyboardInterrupt:
            return


@contextmanager
def _whole_screen() -> Iterator[Callable[[str], None]]:
    """Open a screen of its own, without a cursor; what was on the terminal before is there again afterwards."""

    def put(text: str) -> None:
        head = f"{datetime.now():%H:%M:%S}, Ctrl-C ends it"
        lines = [head, "", *visible(text).splitlines()][: max(1, shutil.get_terminal_size().lines - 1)]
        # Home, each line and the rest of the screen cleared as they are written: nothing flickers.
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield put
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
