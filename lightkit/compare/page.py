"""A comparison as one HTML file that needs nothing else: a table to sort, curves, parallel coordinates."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightkit.compare.comparison import RunComparison
from lightkit.compare.curves import read_curves
from lightkit.compare.grouping import shown
from lightkit.compare.report import TextTable, tables

MOST_CURVES = 60
"""Groups whose curves are drawn: the first ones."""
_TEMPLATE = Path(__file__).with_name("page.html")
_DIGITS = 6


def html_page(comparison: RunComparison, title: str) -> str:
    """Write the page.

    Args:
        comparison: What is shown.
        title: Its heading.
    """
    content = {
        **comparison.plain(),
        "names": comparison.names,
        "shown": [{key: shown(key, value) for key, value in row.group.values.items()} for row in comparison.rows],
        "curves": [
            {name: _rounded(asdict(curve)) for name, curve in read_curves(row.group).items()}
            for row in comparison.rows[:MOST_CURVES]
        ],
        "tests": [_test_table(table) for table in tables(comparison)[1:]],
        "title": title,
    }
    # `<` and the like cannot end the element that the text stands in.
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    page = _TEMPLATE.read_text(encoding="utf-8")
    return page.replace("{{title}}", html.escape(title)).replace("{{data}}", data)


def _rounded(curve: dict[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {
        name: [float(f"{each:.{_DIGITS}g}") if isinstance(each, float) else each for each in values]
        for name, values in curve.items()
    }


def _test_table(table: TextTable) -> dict[str, Any]:
    return {"title": table.title, "heads": table.heads, "rows": table.rows, "right": table.right, "notes": table.notes}
