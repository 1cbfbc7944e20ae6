"""`lightkit runs` and `lightkit ps`: what has been trained, what is running, and how the rest ended."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import complain, number, read_seconds, report, say, table, watch
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.text import counted
from lightkit.runs.catalog import no_project_note, path_from, project
from lightkit.runs.filters import Condition, direction_of, look_up, matching, order, read_statuses
from lightkit.runs.index import all_records

if TYPE_CHECKING:
    from lightkit.detached.folders import ListedRun

COLUMNS = ("when", "name", "seed", "status", "metric", "best", "epochs", "members", "tags", "folder")
ACTIONS = ("tag", "note", "rm", "du", "archive", "import")
"""What can be done with runs, each a function of `lightkit.cli.care`."""
OF_PS = ("run", "state", "step", "left", "started", "process", "folder")
_AROUND = 10
"""Lines of a terminal that a table which is drawn again and again leaves to what stands around it."""


def runs(args: list[str]) -> int:
    """List the runs, or do something with them."""
    if args and args[0] in ACTIONS:
        from lightkit.cli import care

        return int(getattr(care, f"{args[0]}_runs")(args[1:]))
    options = Parser("runs", dashed=("--sort",), status="", limit="20").read(args)
    expected = "a whole number, 0 for all"
    limit = whole_number("--limit", options.limit, what="not a number of runs", expected=expected)
    statuses, conditions = read_statuses(options.status), [Condition.parse(text) for text in options.where]
    root = project()
    everything = all_records(root)
    chosen = matching(everything, statuses=statuses, conditions=conditions)
    if options.sort is None:
        chosen = chosen[-limit:]
    elif chosen:
        ranked = order(chosen, options.sort, lambda name: direction_of(name, everything[::-1]))
        chosen = ranked[:limit] if limit else ranked
    named = [*(condition.key for condition in conditions), (options.sort or "").removeprefix("-")]
    more = [key for key in dict.fromkeys(named) if key and key not in (*COLUMNS, "started")]
    rows = list[dict[str, Any]]()
    for run in chosen:
        place = str(run.folder.relative_to(root))
        cells = (run.name, run.seed, run.status, run.metric, run.best, run.epochs, run.members, run.tags, place)
        row = dict(zip(COLUMNS, (f"{run.started:%Y-%m-%d %H:%M:%S}", *cells)))
        rows.append(row | {key: look_up(run, key) for key in more} | {"damage": list(run.damage)})
    if rows or options.json:
        return report(options, rows, lambda: _table(rows, more))
    if everything:
        say(f"none of {counted(len(everything), 'run')} in {root / run_files.OUTPUTS} is like that")
    else:
        say(f"no runs in {root / run_files.OUTPUTS} yet: `lightkit train` makes one")
        if note := no_project_note():
            say(note)
    return 0


def _table(rows: Sequence[dict[str, Any]], more: Sequence[str]) -> Iterator[str]:
    """Yield the table; below it, on standard error, which runs are damaged."""
    heads = [name for name in COLUMNS[:-1] if name not in ("members", "tags") or any(row[name] for row in rows)]
    heads += [*more, COLUMNS[-1]]
    texts = [[_cell(name, row[name], more) for name in heads] for row in rows]
    numeric = {name for name in more if all(isinstance(row[name], int | float | None) for row in rows)}
    right = [heads.index(name) for name in heads if name in {"seed", "best", "epochs", "members", *numeric}]
    yield table(heads, texts, right=right, cut=[heads.index("name"), heads.index("folder")])
    if damaged := [f"{row['folder']}: {'; '.join(row['damage'])}" for row in rows if row["damage"]]:
        complain("\n".join(["", "damaged:", *damaged, f"`lightkit doctor {run_files.OUTPUTS}/` says more"]))


def _cell(name: str, value: Any, more: Sequence[str]) -> str:
    """Write a value; those of the configuration as they are."""
    if name in more and "/" not in name and value is not None:
        return value if isinstance(value, str) else json.dumps(value)
    return number(value)


def ps(args: list[str]) -> int:
    """List what is alive, and how the rest ended."""
    options = Parser("ps", "other*").read(args)
    if options.other:
        fix = f"lightkit logs {options.other[0]}, or lightkit attach {options.other[0]}"
        raise UserError("ps takes no run", key="lightkit ps", received=options.other[0], fix=fix)
    if options.start_waiting:
        from lightkit.detached.line import start_waiting

        start_waiting(resume=True)
    seconds = None if options.watch is None else read_seconds(options.watch)
    live = seconds is not None and not options.json and sys.stdout.isatty()
    if seconds is None:
        say(_listed(options, live=live))
    else:
        watch(lambda: _listed(options, live=live), seconds, live=live, stamped=not options.json)
    return 0


def _listed(options: Namespace, *, live: bool) -> str:
    """Return what is running now, as it is asked for.

    Args:
        options: Of `lightkit ps`.
        live: It has to fit the screen. What would not would be cut off at the end, where the newest are.
    """
    from lightkit.detached.folders import list_entries

    entries, left_out = list_entries(project(), everything=options.all)
    if options.json:
        indent = 2 if options.watch is None else None
        return json.dumps([entry.facts() for entry in entries], indent=indent, allow_nan=False)
    if live:
        kept = foremost(entries, max(1, shutil.get_terminal_size().lines - _AROUND))
        entries, left_out = kept, left_out + len(entries) - len(kept)
    return page(entries, left_out, project())


def foremost(entries: Sequence[ListedRun], most: int) -> list[ListedRun]:
    """Choose what is shown where not all fit: what is alive, then the newest; in the order that they had."""
    from lightkit.detached.liveness import ALIVE

    places = range(len(entries))
    ranked = sorted(places, key=lambda at: (entries[at].standing.state not in ALIVE, -at))
    return [entries[at] for at in sorted(ranked[:most])]


def page(entries: Sequence[ListedRun], left_out: int, root: Path) -> str:
    """Draw the table, and below it why runs have failed or died.

    Args:
        entries: What is listed.
        left_out: Number of those that are not.
        root: The project.
    """
    more = f"{left_out} more: lightkit ps --all" if left_out else ""
    if not entries:
        note = no_project_note() or "`lightkit train -d` starts a run that outlives this terminal"
        return f"nothing is running in {root}\n{more or note}"
    drawn = table(OF_PS, [_cells(entry, root) for entry in entries], right=[2, 3], cut=[0, 6])
    reasons = [
        f"{entry.name} {run.state}{'' if run.step is None else f' at step {run.step}'}: {run.error or run.waits}"
        for entry in entries
        if (run := entry.standing).error or run.waits
    ]
    return "\n\n".join(filter(None, [drawn, "\n".join(reasons), more]))


def _cells(entry: ListedRun, root: Path) -> list[str]:
    from lightkit.loggers.wording import duration

    standing, shown = entry.standing, entry.shown
    step = "" if standing.step is None else str(standing.step)
    if standing.total_steps and standing.state != "finished":
        step = f"{step or 0}/{standing.total_steps}"
    if shown is not None and shown.table is not None:
        step = f"{shown.share:.0%}"
    process = "" if standing.pid is None else str(standing.pid)
    if process and standing.host not in (None, socket.gethostname()):
        process = f"{process} on {standing.host}"
    return [
        f"  {entry.name}" if entry.kind == "job" else entry.name,
        f"{standing.state} sweep" if entry.kind == "sweep" else standing.state,
        step,
        "" if shown is None or shown.eta_seconds is None else duration(shown.eta_seconds),
        f"{standing.started:%Y-%m-%d %H:%M}",
        process,
        path_from(root, standing.folder),
    ]
