"""`lightkit ps`: what is running, and how the rest ended."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.live import read_seconds, watch
from lightkit.cli.terminal import fitting, say, table, width
from lightkit.common.errors import UserError
from lightkit.runs.catalog import no_project_note, project

if TYPE_CHECKING:
    from lightkit.detached.listing import ListedRun

_AROUND = 10
"""Lines of a terminal that a table which is drawn again and again leaves to what stands around it."""
TITLES = ("run", "state", "step", "left", "started", "process", "folder")


def ps(args: list[str]) -> int:
    """List what is alive, and how the rest ended."""
    options = Parser("ps", "other*").read(args)
    if options.other:
        fix = f"lightkit logs {options.other[0]}, or lightkit attach {options.other[0]}"
        raise UserError("ps takes no run", key="lightkit ps", received=options.other[0], fix=fix)
    seconds = None if options.watch is None else read_seconds(options.watch)
    from lightkit.detached.listing import list_entries

    root, live = project(), seconds is not None and not options.json and sys.stdout.isatty()

    def show() -> str:
        entries, left_out = list_entries(root, everything=options.all)
        if options.json:
            return json.dumps([entry.facts() for entry in entries], indent=None if seconds else 2, allow_nan=False)
        if live:  # what would not fit would be cut off at the end, where the newest are
            kept = foremost(entries, max(1, shutil.get_terminal_size().lines - _AROUND))
            entries, left_out = kept, left_out + len(entries) - len(kept)
        return page(entries, left_out, root)

    if seconds is None:
        say(show())
    else:
        watch(show, seconds, live=live, stamped=not options.json)
    return 0


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
    rows = [_cells(entry, root) for entry in entries]
    cut = fitting(TITLES, rows, columns=[0, 6], width=width())
    reasons = [_reason(entry) for entry in entries if entry.standing.error]
    return "\n\n".join(filter(None, [table(TITLES, cut, right=[2, 3]), "\n".join(reasons), more]))


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
    folder = standing.folder
    return [
        f"  {entry.name}" if entry.kind == "job" else entry.name,
        f"{standing.state} sweep" if entry.kind == "sweep" else standing.state,
        step,
        "" if shown is None or shown.eta_seconds is None else duration(shown.eta_seconds),
        f"{standing.started:%Y-%m-%d %H:%M}",
        process,
        str(folder.relative_to(root) if folder.is_relative_to(root) else folder),
    ]


def _reason(entry: ListedRun) -> str:
    standing = entry.standing
    step = "" if standing.step is None else f" at step {standing.step}"
    return f"{entry.name} {standing.state}{step}: {standing.error}"
