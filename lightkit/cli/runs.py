"""`lightkit runs`: what has been trained."""

from __future__ import annotations

import json
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import fitting, number, say, table, width
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.runs.catalog import all_runs, no_project_note, project, summarize

HELP = {
    "runs": """\
usage: lightkit runs [--limit N] [--json]

The runs in outputs/, newest last: when, name, seed, status, best monitored value, epochs, folder. An ensemble is one
run; where there is one, a column counts the members. Other commands take the name: of several runs that have it, the
newest. Long names are cut to fit the terminal, but not in a pipe.

options:
  --limit N  at most the N newest (default: 20; 0 shows all)
  --json     as a JSON list

examples:
  lightkit runs
  lightkit runs --limit 3 --json""",
}

COLUMNS = ("when", "name", "seed", "status", "metric", "best", "epochs", "members", "folder")


def runs(args: list[str]) -> int:
    """List the runs."""
    parser = Parser("runs")
    parser.add_argument("--limit", default="20")
    parser.add_argument("--json", action="store_true")
    options = parser.read(args)
    if not options.limit.isdecimal():
        expected = "a whole number, 0 for all"
        raise UserError("not a number of runs", key="--limit", received=options.limit, expected=expected)
    root = project()
    rows = list[dict[str, Any]]()
    for folder in all_runs(root)[-int(options.limit) :]:
        run = summarize(folder)
        place = str(folder.relative_to(root))
        cells = (run.name, run.seed, run.status, run.metric, run.best, run.epochs, run.members, place)
        rows.append(dict(zip(COLUMNS, (f"{run.started:%Y-%m-%d %H:%M:%S}", *cells))))
    if options.json:
        say(json.dumps(rows, indent=2, allow_nan=False))
    elif rows:
        heads = [name for name in COLUMNS if name != "members" or any(row[name] for row in rows)]
        texts = [[number(row[name]) for name in heads] for row in rows]
        right = [heads.index(name) for name in ("seed", "best", "epochs", "members") if name in heads]
        cut = [heads.index(name) for name in ("name", "folder")]
        say(table(heads, fitting(heads, texts, columns=cut, width=width()), right=right))
    else:
        say(f"no runs in {root / run_files.OUTPUTS} yet: `lightkit train` makes one")
        if note := no_project_note():
            say(note)
    return 0
