"""The folders of everything that was started in a project: runs, sweeps, and what has only just begun."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.suggest import nearest
from lightkit.detached.line import find
from lightkit.detached.liveness import ALIVE, Standing, is_waiting, look
from lightkit.loggers.files import ShownProgress, read_progress_file
from lightkit.runs.catalog import no_runs, noted, path_from, places_of, run_name, started
from lightkit.runs.index import RunIndex
from lightkit.runs.reading import read_facts, run_folders
from lightkit.sweep.job import JobPlaces
from lightkit.sweep.state import is_locked

_MARKS = (run_files.CONFIG, run_files.SWEEP_JOURNAL, run_files.LOCK, run_files.JOB_LOCK)
"""Each of them makes a folder one that something was started in; a run has a lock before anything else."""
_LIVELY = (*_MARKS[1:], run_files.WAITING)
"""Without any of them nothing is alive in a folder."""
_SHOWN = 6
"""Names that a message lists."""


def all_folders(root: Path) -> list[Path]:
    """List the folders of all runs and sweeps of a project as they began, the jobs of a sweep right after it."""
    return sorted(run_folders(root / run_files.OUTPUTS, _MARKS), key=_order)


def is_sweep(folder: Path) -> bool:
    """Tell whether a folder is that of a sweep."""
    return os.path.lexists(f"{folder}/{run_files.SWEEP_JOURNAL}")  # what is no file is a damaged one


def is_alive(folder: Path) -> bool:
    """Tell whether a process works in a folder, the run waits in line, or a queue holds jobs of the sweep there."""
    return is_locked(folder) or is_waiting(folder) or (is_sweep(folder) and look(folder).state in ALIVE)


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
        raise no_runs(root)
    names = names_of(newest_first)
    known = [*names, *(folder.name for folder in newest_first)]
    fix = noted("`lightkit ps --all` lists runs and sweeps; `last` is the newest")
    likely = dict.fromkeys([*nearest(text, known), *names[:_SHOWN]])
    raise UserError("no such run or sweep here", received=text, choices=likely, fix=fix, family="no-such-run")


def names_of(folders: Iterable[Path]) -> list[str]:
    """Return the names of runs and sweeps, each once."""
    return [*dict.fromkeys(map(run_name, folders))]


def _order(folder: Path) -> tuple[datetime, str, datetime, str]:
    sweep = sweep_of(folder)
    own = started(folder)
    return (started(sweep), str(sweep), own, str(folder)) if sweep else (own, str(folder), datetime.min, "")


RECENT_SECONDS = 86_400.0
"""Of what is no longer alive, that is listed which ended within this time."""
_MOST = 20
_ENDINGS = (run_files.RESULT, run_files.LOG, run_files.OUTPUT_LOG, run_files.LOCK, run_files.SWEEP_JOURNAL)
"""Files whose age tells when something ended."""


@dataclass(frozen=True)
class ListedRun:
    """A run or a sweep as it is listed.

    Attributes:
        kind: `run`, `sweep`, or `job` for a run that belongs to a sweep.
        standing: What it is doing, or how it ended.
        shown: What it has written of its progress; None where it is not alive, or has written nothing.
    """

    kind: str
    standing: Standing
    shown: ShownProgress | None

    @property
    def name(self) -> str:
        """Its name, without the time."""
        return run_name(self.standing.folder)

    def facts(self) -> dict[str, Any]:
        """Return all that is known of it, as plain values."""
        known = asdict(self.standing)
        folder, began = known.pop("folder"), known.pop("started")
        share = self.shown.share if self.shown else 1.0 if self.standing.state == "finished" else None
        left = self.shown.eta_seconds if self.shown else None
        times = {"started": began.isoformat(sep=" ", timespec="seconds"), "share": share, "eta_seconds": left}
        return {"name": self.name, "kind": self.kind, **known, **times, "folder": str(folder)}


def list_entries(root: Path, *, everything: bool = False) -> tuple[list[ListedRun], int]:
    """List runs and sweeps in the order in which they began.

    Args:
        root: The project.
        everything: All there are; else those that are alive or ended within a day, and of a sweep's jobs those alive.

    Returns:
        The list, and the number of those that were left out.
    """
    folders, journal = run_folders(root / run_files.OUTPUTS, _MARKS), run_files.SWEEP_JOURNAL
    alive = {folder for folder, names in folders.items() if not names.isdisjoint(_LIVELY) and is_alive(folder)}
    jobs = {one for one, names in folders.items() if journal not in names and journal in folders.get(one.parent, ())}
    index, since = RunIndex(root), time.time() - RECENT_SECONDS
    recent = [one for one in folders.keys() - alive - jobs if _last_change(one, folders[one]) > since]
    recent = sorted(recent, key=lambda folder: (started(folder, index.noted(folder)), str(folder)))[-_MOST:]
    chosen = sorted(folders if everything else [*alive, *recent], key=_order)
    ended = [folder for folder in chosen if folder not in alive and (folder / run_files.CONFIG).exists()]
    damage = {record.folder: record.damage for record in index.records(ended)}
    return [_with_damage(entry_of(folder), damage.get(folder, ())) for folder in chosen], len(folders) - len(chosen)


def _with_damage(entry: ListedRun, damage: Sequence[str]) -> ListedRun:
    """Say what of a run cannot be read, where nothing else is to be said of it."""
    standing = entry.standing
    return replace(entry, standing=replace(standing, error=standing.error or "; ".join(damage)))


def entry_of(folder: Path) -> ListedRun:
    """Return a run or a sweep as it is at this moment."""
    standing = look(folder)
    if standing.total_steps is None:  # its length is given in epochs
        standing = replace(standing, total_steps=read_facts(folder).get("total_steps"))  # older versions don't tell
    if standing.state == "waiting" and (place := find(folder)):
        standing = replace(standing, waits=place.waits())
    kind = "sweep" if is_sweep(folder) else "run" if sweep_of(folder) is None else "job"
    shown = read_progress_file(folder / run_files.PROGRESS)
    if shown is not None and shown.progress is not None and standing.state in (*ALIVE, "died", "lost"):
        # Not all steps are logged.
        newer = max(standing.step or 0, shown.progress.step)
        progress = shown.progress
        standing = replace(standing, step=newer, total_steps=progress.total_steps, epoch=progress.epoch)
    return ListedRun(kind, standing, shown if standing.state in ALIVE else None)


def _last_change(folder: Path, names: set[str]) -> float:
    """Return the second at which something was last written in a folder."""
    ages = [0.0]
    for name in names.intersection(_ENDINGS):
        with suppress(OSError):
            ages.append((folder / name).stat().st_mtime)
    return max(ages)
