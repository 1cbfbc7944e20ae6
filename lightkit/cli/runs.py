"""`lightkit runs`: what has been trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import complain, json_text, number, say, table
from lightkit.common import run_files
from lightkit.common.text import counted
from lightkit.runs.catalog import no_project_note, project
from lightkit.runs.filters import Condition, direction_of, look_up, matching, order, read_statuses
from lightkit.runs.index import all_records

COLUMNS = ("when", "name", "seed", "status", "metric", "best", "epochs", "members", "folder")


def runs(args: list[str]) -> int:
    """List the runs."""
    options = Parser("runs", dashed=("--sort",), status="", limit="20").read(args)
    expected = "a whole number, 0 for all"
    limit = whole_number("--limit", options.limit, what="not a number of runs", expected=expected)
    statuses, conditions = read_statuses(options.status), [Condition.parse(text) for text in options.where]
    root = project()
    everything = all_records(root)
    found = matching(everything, statuses=statuses, conditions=conditions)
    if options.sort is None:
        chosen = found[-limit:]
    else:
        ranked = order(found, options.sort, lambda name: direction_of(name, everything[::-1])) if found else []
        chosen = ranked[:limit] if limit else ranked
    asked = [*(condition.key for condition in conditions), (options.sort or "").removeprefix("-")]
    more = [key for key in dict.fromkeys(asked) if key and key not in (*COLUMNS, "started")]
    rows = list[dict[str, Any]]()
    for run in chosen:
        place = str(run.folder.relative_to(root))
        cells = (run.name, run.seed, run.status, run.metric, run.best, run.epochs, run.members, place)
        row = dict(zip(COLUMNS, (f"{run.started:%Y-%m-%d %H:%M:%S}", *cells)))
        rows.append(row | {key: look_up(run, key) for key in more} | {"damage": list(run.damage)})
    if options.json:
        say(json_text(rows))
    elif rows:
        say(_table(rows, more))
        damaged = [f"{row['folder']}: {'; '.join(row['damage'])}" for row in rows if row["damage"]]
        if damaged:
            complain("\n".join(["", "damaged:", *damaged, f"`lightkit doctor {run_files.OUTPUTS}/` says more"]))
    elif everything:
        say(f"none of {counted(len(everything), 'run')} in {root / run_files.OUTPUTS} is like that")
    else:
        say(f"no runs in {root / run_files.OUTPUTS} yet: `lightkit train` makes one")
        if note := no_project_note():
            say(note)
    return 0


def _table(rows: Sequence[dict[str, Any]], more: Sequence[str]) -> str:
    heads = [name for name in COLUMNS[:-1] if name != "members" or any(row[name] for row in rows)]
    heads += [*more, COLUMNS[-1]]
    texts = [[_cell(name, row[name], more) for name in heads] for row in rows]
    numeric = {name for name in more if all(isinstance(row[name], int | float | None) for row in rows)}
    right = [heads.index(name) for name in heads if name in {"seed", "best", "epochs", "members", *numeric}]
    cut = [heads.index(name) for name in ("name", "folder")]
    return table(heads, texts, right=right, cut=cut)


def _cell(name: str, value: Any, more: Sequence[str]) -> str:
    """Write a value; those of the configuration as they are."""
    if name in more and "/" not in name and value is not None:
        return value if isinstance(value, str) else json.dumps(value)
    return number(value)
