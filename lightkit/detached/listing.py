"""What `lightkit ps` shows: the runs and sweeps of a project that are alive, and how the others ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.detached.folders import all_folders, is_alive, is_sweep, sweep_of
from lightkit.detached.liveness import ALIVE, Standing, look
from lightkit.loggers.progress_file import ShownProgress, read_progress_file
from lightkit.runs.catalog import run_name
from lightkit.runs.index import RunIndex
from lightkit.runs.reading import read_facts

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
    folders = all_folders(root)
    alive = {folder for folder in folders if is_alive(folder)}
    others = [folder for folder in folders if folder not in alive and sweep_of(folder) is None]
    now = time.time()
    recent = [folder for folder in others if now - _last_change(folder) < RECENT_SECONDS][-_MOST:]
    chosen = folders if everything else [folder for folder in folders if folder in alive or folder in recent]
    ended = [folder for folder in chosen if folder not in alive and (folder / run_files.CONFIG).exists()]
    damage = {record.folder: record.damage for record in RunIndex(root).records(ended)}
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
    kind = "sweep" if is_sweep(folder) else "run" if sweep_of(folder) is None else "job"
    shown = read_progress_file(folder / run_files.PROGRESS)
    if shown is not None and shown.progress is not None and standing.state in (*ALIVE, "died", "lost"):
        # Not all steps are logged.
        newer = max(standing.step or 0, shown.progress.step)
        known: dict[str, Any] = {
            "step": newer,
            "total_steps": shown.progress.total_steps,
            "epoch": shown.progress.epoch,
        }
        standing = replace(standing, **known)
    return ListedRun(kind, standing, shown if standing.state in ALIVE else None)


def _last_change(folder: Path) -> float:
    """Return the second at which something was last written in a folder."""
    ages = [0.0]
    for name in _ENDINGS:
        with suppress(OSError):
            ages.append((folder / name).stat().st_mtime)
    return max(ages)
