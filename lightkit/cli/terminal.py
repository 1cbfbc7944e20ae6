"""Plain text on the terminal: lines, complaints, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence


def say(text: str = "") -> None:
    """Print `text` to standard output."""
    print(text)


def complain(text: str) -> None:
    """Print `text` to standard error, after what went to standard output before it."""
    sys.stdout.flush()
    print(text, file=sys.stderr)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Text table with aligned columns, two spaces between them.

    Args:
        titles: Column heads; without any, the table has no head.
        rows: Cells, as many per row as there are titles.
        right: Numbers of the columns that are aligned to the right.
    """
    lines = [list(titles)] if titles else []
    lines += [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)] if lines else []
    return "\n".join(_line(line, widths, right) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths)))
    return "  ".join(padded).rstrip()


def number(value: object) -> str:
    """A measured value for a table: four significant decimals, other things as they are, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
