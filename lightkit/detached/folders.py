"""The folders of everything that was started in a project: runs, sweeps, and what has only just begun."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.suggest import nearest
from lightkit.detached.liveness import ALIVE, look
from lightkit.runs.catalog import no_project_note, path_from, places_of, run_name, started
from lightkit.runs.reading import run_folders
from lightkit.sweep.folders import JobPlaces
from lightkit.sweep.state import is_locked

_MARKS = (run_files.CONFIG, run_files.SWEEP_JOURNAL, run_files.LOCK, run_files.JOB_LOCK)
"""Each of them makes a folder one that something was started in; a run has a lock before anything else."""
_SHOWN = 6
"""Names that a message lists."""


def all_folders(root: Path) -> list[Path]:
    """List the folders of all runs and sweeps of a project as they began, the jobs of a sweep right after it."""
    return sorted(run_folders(root / run_files.OUTPUTS, _MARKS), key=_order)


def is_sweep(folder: Path) -> bool:
    """Tell whether a folder is that of a sweep."""
    return os.path.lexists(folder / run_files.SWEEP_JOURNAL)  # what is no file is a damaged one


def is_alive(folder: Path) -> bool:
    """Tell whether a process works in a folder, or a queue holds jobs of the sweep there."""
    return is_locked(folder) or (is_sweep(folder) and look(folder).state in ALIVE)


def sweep_of(folder: Path) -> Path | None:
    """Return the folder of the sweep that a run is a job of; None for any other."""
    above = folder.parent
    return above if is_sweep(above) and not is_sweep(folder) else None


def find_folder(text: str, root: Path, *, one_alive: bool = False) -> Path:
    """Find the folder of a run or of a sweep by its path, its name, or `last` for the newest.

    Of several with the same name, one that is alive is meant, and else the newest.

    Args:
        text: What was typed.
        root: The project.
        one_alive: Refuse a name that several have which are alive.

    Raises:
        UserError: There is none, or several are meant.
    """
    for folder in places_of(text, root):
        if any(os.path.lexists(folder / mark) for mark in _MARKS):  # what is no file is told by those that read it
            if sweep_of(folder) is not None:  # a link in a sweep from elsewhere may lead to any other run
                JobPlaces(folder.parent).place(folder.name)
            return folder.resolve()
    newest_first = all_folders(root)[::-1]
    found = [folder for folder in newest_first if folder.name == text]
    found = found or [folder for folder in newest_first if run_name(folder) == text]
    if text == "last":
        found = [folder for folder in newest_first if sweep_of(folder) is None][:1]
    alive = [folder for folder in found if is_alive(folder)]
    if one_alive and len(alive) > 1:
        fix = "one of their folders; `lightkit ps` lists them"
        choices = [path_from(root, folder) for folder in alive]
        raise UserError("several runs of this name are alive", received=text, choices=choices, fix=fix)
    if found:
        return (alive or found)[0]
    if text == "last":
        fix = "; ".join(filter(None, ["`lightkit train` makes one", no_project_note()]))
        raise UserError(f"no run here: {root / run_files.OUTPUTS} has none yet", fix=fix, family="no-such-run")
    names = [*dict.fromkeys(map(run_name, newest_first))]
    known = [*names, *(folder.name for folder in newest_first)]
    fix = "; ".join(
        filter(None, ["`lightkit ps --all` lists runs and sweeps; `last` is the newest", no_project_note()])
    )
    likely = dict.fromkeys([*nearest(text, known), *names[:_SHOWN]])
    raise UserError("no such run or sweep here", received=text, choices=likely, fix=fix, family="no-such-run")


def names_of(folders: Iterable[Path]) -> list[str]:
    """Return the names of runs and sweeps, each once."""
    return [*dict.fromkeys(map(run_name, folders))]


def _order(folder: Path) -> tuple[datetime, str, datetime, str]:
    sweep = sweep_of(folder)
    own = started(folder)
    return (started(sweep), str(sweep), own, str(folder)) if sweep else (own, str(folder), datetime.min, "")
