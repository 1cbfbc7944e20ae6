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

HELP = {
    "runs": """\
usage: lightkit runs [--status NAMES] [--where CONDITION]... [--sort NAME] [--limit N] [--json]

List the runs in outputs/, newest last: time, name, seed, status, best monitored value (so far, if the run still
trains), epochs, folder. An ensemble is one run, with a column for the number of members. Other commands take the name
of a run; if several runs have the same name, they take the newest. Long names are shortened to fit the terminal, but
not in a pipe.

options:
  --status NAMES     only runs with one of these, joined by commas: running, finished, paused, pruned, interrupted,
                     failed, unfinished (killed), damaged (config.yaml or result.json cannot be read)
  --where CONDITION  only runs for which it holds, such as 'optim.lr>0.01'; may be given several times. Left stands a
                     key, a metric (val/accuracy) or a column; a group (model) stands for its class. Then = != < <= >
                     >= or ~ for a pattern, such as 'name~wine*'
  --sort NAME        by a metric, the best first, or by a key, the smallest first; -NAME turns it round. N are the
                     first ones then
  --limit N          at most the N newest (default: 20; 0 shows all)
  --json             as a JSON list

examples:
  lightkit runs
  lightkit runs --limit 3 --json
  lightkit runs --status finished --where 'optim.lr>0.01' --sort val/accuracy""",
}

COLUMNS = ("when", "name", "seed", "status", "metric", "best", "epochs", "members", "folder")


def runs(args: list[str]) -> int:
    """List the runs."""
    parser = Parser("runs", dashed=("--sort",))
    parser.add_argument("--status", default="")
    parser.add_argument("--where", action="append", default=[])
    parser.add_argument("--sort")
    parser.add_argument("--limit", default="20")
    parser.add_argument("--json", action="store_true")
    options = parser.read(args)
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
