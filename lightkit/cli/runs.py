"""`lightkit runs`: what has been trained."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.folders import all_runs, project
from lightkit.cli.terminal import number, say, table
from lightkit.common.errors import UserError

HELP = {
    "runs": """\
usage: lightkit runs [--limit N] [--json]

The runs in outputs/, newest last: when, name, status, best monitored value, epochs, folder.

options:
  --limit N  at most the N newest (default: 20; 0 shows all)
  --json     as a JSON list

examples:
  lightkit runs
  lightkit runs --limit 3 --json""",
}

RESULT_FILE = "result.json"
COLUMNS = ("when", "name", "status", "metric", "best", "epochs", "folder")


def runs(args: list[str]) -> int:
    """List the runs."""
    parser = Parser("runs")
    parser.add_argument("--limit", default="20")
    parser.add_argument("--json", action="store_true")
    options = parser.read(args)
    root = project()
    folders = all_runs(root)[-_count(options.limit) :]
    rows = [describe(folder, root) for folder in folders]
    if options.json:
        say(json.dumps(rows, indent=2, allow_nan=False))
    elif rows:
        say(table(COLUMNS, [[number(row[name]) for name in COLUMNS] for row in rows], right=[4, 5]))
    else:
        say(f"no runs in {root / 'outputs'} yet: `lightkit train` makes one")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise UserError("not a number of runs", key="--limit", received=text, expected="a whole number, 0 for all")
    return int(text)


def describe(folder: Path, root: Path) -> dict[str, Any]:
    """One run as a row; what is missing or damaged in its folder stays empty.

    Args:
        folder: Folder of the run.
        root: Project folder that paths are shown relative to.
    """
    result = read_result(folder)
    objective = result.get("objective")
    objective = objective if isinstance(objective, dict) else {}
    date, name = _when_and_name(folder)
    return {
        "when": date,
        "name": name,
        "status": _text(result.get("status")) or "unfinished",
        "metric": _text(objective.get("name")),
        "best": _finite(objective.get("value")),
        "epochs": result.get("epochs") if isinstance(result.get("epochs"), int) else None,
        "folder": str(folder.relative_to(root)),
    }


def _when_and_name(folder: Path) -> tuple[str, str]:
    """Date, time and name from `.../<date>/<time>-<name>[/<job of a sweep>]`."""
    found = re.search(r"(\d{4}-\d{2}-\d{2})/(\d{2}-\d{2}-\d{2})-([^/]+(?:/[^/]+)?)$", folder.as_posix())
    return (f"{found[1]} {found[2].replace('-', ':')}", found[3]) if found else ("", folder.name)


def read_result(folder: Path) -> dict[str, Any]:
    """The content of a run's `result.json`; empty when there is none that can be read."""
    try:
        content = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
