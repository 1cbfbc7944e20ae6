"""Plain text on the terminal: lines, complaints, tables, JSON."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence

from lightkit.common.text import in_one_line, visible

SHORTEST = 12


def say(text: str = "") -> None:
    """Print `text` to standard output, control characters written out."""
    print(visible(text))


def complain(text: str) -> None:
    """Print `text` to standard error, after what went to standard output before it; control characters written out."""
    sys.stdout.flush()
    print(visible(text), file=sys.stderr)


def json_text(content: object, *, one_line: bool = False) -> str:
    """Write plain values as JSON, which has null for what is no finite number.

    Args:
        content: Lists, dictionaries, numbers and texts; of anything else its text is written.
        one_line: Write a line, for one value after the other; else indented.
    """
    from lightkit.loggers.files import plain

    return json.dumps(plain(content), indent=None if one_line else 2, ensure_ascii=False, allow_nan=False)


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
    cells: Sequence[Sequence[str]] = list(rows)
    if cut:
        cells = fitting(titles, cells, columns=cut, width=columns or width())
    lines = [list(titles)] if titles else []
    lines += [list(map(in_one_line, row)) for row in cells]
    widths = [max(map(len, column)) for column in zip(*lines)] if lines else []
    texts = []
    for line in lines:
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths))]
        texts.append("  ".join(padded).rstrip())
    return "\n".join(texts)


def width() -> int | None:
    """Return the characters in a line of the terminal; None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitting(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, columns: Sequence[int], width: int | None
) -> list[list[str]]:
    """Cut `columns` of a table's rows so that a line fits; the end of a path or a name tells most.

    Args:
        titles: Column heads.
        rows: Cells.
        columns: Numbers of the columns that may be cut, evenly, down to `SHORTEST` characters.
        width: Characters in a line; None cuts nothing.
    """
    lines = [list(map(in_one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *lines)]
    surplus = sum(widths) + 2 * (len(widths) - 1) - width if width is not None else 0
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
    return lines


def number(value: object) -> str:
    """Write a measured value for a table: four decimals, other things as they are, nothing for None."""
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
