"""Tables of the results, and the pages that show them: between two markers, which nobody edits by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.report import results
from experiments.report.rows import PAGES, Metric, Page

SUMMARY = Path("docs/concepts/what-it-reaches.md")
"""The page with a line for each experiment."""
BEGIN = "<!-- results: made by `python -m experiments.report` -->"
END = "<!-- /results -->"
UNMEASURED = "not measured with the code as it is"
LEVEL = 2.0
"""Up to how many standard errors a difference proves nothing."""
Line = list[str]


def page_table(page: Page, found: Mapping[str, Any]) -> str:
    """The table of a page: a row for each label, a column for each metric, or for each number of images."""
    entries = [(page.variants[key], entry) for key, entry in found["variants"].items()]
    columns = list(dict.fromkeys(variant.column for variant in page.variants.values() if variant.column != "-"))
    lines = dict.fromkeys([variant.label for variant in page.variants.values() if variant.column != "-"])
    rows = {label: {variant.column: entry for variant, entry in entries if variant.label == label} for label in lines}
    classics = {str(entry["label"]): {str(entry.get("column", "")): entry} for entry in found["classics"].values()}
    names = [column or metric.label for column in columns for metric in page.metrics]
    head = [["", *([] if len(columns) > 1 else ["n"]), *names]]
    body = [
        [label, *([] if len(columns) > 1 else [_count(by_column.get(columns[0]))]), *_cells(page, columns, by_column)]
        for label, by_column in {**rows, **classics}.items()
    ]
    return markdown(head + body)


def _count(entry: Mapping[str, Any] | None) -> str:
    return str(len(entry["seeds"])) if entry else ""


def _cells(page: Page, columns: Iterable[str], entries: Mapping[str, Mapping[str, Any]]) -> Line:
    many = len(list(columns)) > 1
    return [cell(metric, entries.get(column), count=many) for column in columns for metric in page.metrics]


def cell(metric: Metric, entry: Mapping[str, Any] | None, *, count: bool = False) -> str:
    """Mean and standard deviation of a metric, and how many runs that is; empty for a classic that lacks it."""
    if entry is None:
        return UNMEASURED
    if metric.key not in entry["mean"]:
        return ""
    mean, deviation = entry["mean"][metric.key], entry["std"].get(metric.key)
    text = number(metric, mean) + (f" ± {_scaled(metric, deviation)}" if deviation is not None else "")
    return f"{text} (n = {len(entry['seeds'])})" if count and len(entry["seeds"]) > 1 else text


def number(metric: Metric, value: float) -> str:
    """A value as tables show it."""
    return _scaled(metric, value) + (" %" if metric.percent else "")


def _scaled(metric: Metric, value: float, sign: str = "") -> str:
    return f"{value * (100 if metric.percent else 1):{sign}.{metric.digits}f}"


def summary_table(experiments: Path) -> str:
    """The table of all experiments: every page with a headline, beside its strongest classic."""
    head = ["experiment", "n", "network", "strongest classic on the same rows", "network − classic", "other processors"]
    lines = [head]
    for name, page in PAGES.items():
        lines.append([page.title or f"`{name}`", *_headline(page, results.read(experiments, name))])
    return markdown(lines)


def _headline(page: Page, found: Mapping[str, Any]) -> Line:
    metric, network = page.metrics[0], found["variants"].get(page.headline)
    classic = found["classics"].get(page.classic)
    if network is None:
        return ["", UNMEASURED, "", "", ""]
    result = [str(len(network["seeds"])), cell(metric, network) + page.unit]
    if classic is None:
        return [*result, UNMEASURED, "", elsewhere(metric, found)]
    gap, error = results.difference(network, classic, metric.key)
    uncertain = "" if math.isnan(error) else f" ± {_scaled(metric, error)}"
    level = ", level" if abs(gap) <= LEVEL * error else ""
    name = re.sub(r" \([^)]*=[^)]*\)", "", classic["label"])
    return [
        *result,
        f"{cell(metric, classic)}, {name}",
        f"{_scaled(metric, gap, '+')}{uncertain}{level}",
        elsewhere(metric, found),
    ]


def elsewhere(metric: Metric, found: Mapping[str, Any]) -> str:
    """How far a mean, and a single run, may be off on another processor; empty where that was not measured."""
    apart = found.get("rounding", {}).get(metric.key)
    return f"{_scaled(metric, apart['mean'])}; a run {_scaled(metric, apart['run'])}" if apart else ""


def markdown(lines: list[Line]) -> str:
    """Lines of cells as a table; the first one is its head."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def with_table(text: str, table: str) -> str:
    """A page with a table between its markers.

    Raises:
        ValueError: It has no markers.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"there is no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def written(root: Path, names: Iterable[str]) -> dict[Path, str]:
    """The README files of experiments and the page of all of them, as they should be."""
    experiments = root / "experiments"
    made = {
        experiments / name / "README.md": page_table(PAGES[name], results.read(experiments, name)) for name in names
    }
    made[root / SUMMARY] = summary_table(experiments)
    return {file: with_table(file.read_text(encoding="utf-8"), table) for file, table in made.items()}
