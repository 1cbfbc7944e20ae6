"""`lightkit runs`: what has been trained."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import fitting, number, say, table, width
from lightkit.common.errors import UserError
from lightkit.runs.catalog import CONFIG_FILE, RESULT_FILE, all_runs, project, run_name, started

HELP = {
    "runs": """\
usage: lightkit runs [--limit N] [--json]

The runs in outputs/, newest last: when, name, seed, status, best monitored value, epochs, folder. Other commands take
the name: of several runs that have it, the newest. Long names are cut to fit the terminal, but not in a pipe.

options:
  --limit N  at most the N newest (default: 20; 0 shows all)
  --json     as a JSON list

examples:
  lightkit runs
  lightkit runs --limit 3 --json""",
}

_SEED = re.compile(r"^seed: (\d+)\s*$", re.M)
COLUMNS = ("when", "name", "seed", "status", "metric", "best", "epochs", "folder")


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
        cells = fitting(
            COLUMNS, [[number(row[name]) for name in COLUMNS] for row in rows], columns=[1, 7], width=width()
        )
        say(table(COLUMNS, cells, right=[2, 5, 6]))
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
    return {
        "when": f"{started(folder):%Y-%m-%d %H:%M:%S}",
        "name": run_name(folder),
        "seed": seed_of(folder),
        "status": _text(result.get("status")) or "unfinished",
        "metric": _text(objective.get("name")),
        "best": _finite(objective.get("value")),
        "epochs": result.get("epochs") if isinstance(result.get("epochs"), int) else None,
        "folder": str(folder.relative_to(root)),
    }


def read_result(folder: Path) -> dict[str, Any]:
    """The content of a run's `result.json`; empty when there is none that can be read."""
    try:
        content = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def seed_of(folder: Path) -> int | None:
    """The seed in a run's `config.yaml`; None where there is none that can be read."""
    try:
        found = _SEED.search((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return int(found[1]) if found else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
