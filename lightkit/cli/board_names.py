"""Short names for runs in TensorBoard, whose lists have room for the first letters of a path only.

It calls a run by its folder, and so gets a folder of links that are called after what tells the runs from each other.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

from lightkit.runs.catalog import dated

_EVENTS = "tfevents"
_SECONDS = 5.0
_LONGEST = 200
"""Characters of a name; file systems take a few more."""


class RunLinks:
    """A folder with a link to every run below another folder.

    Args:
        runs: Folder with the runs at any depth.
        place: Where the links go.
    """

    def __init__(self, runs: Path, place: Path) -> None:
        self.runs, self.place = runs.resolve(), place
        self._known = dict[Path, Path]()

    def follow(self, ended: Event) -> None:
        """Take new runs up as they come, until the end."""
        while not ended.wait(_SECONDS):
            with suppress(OSError):
                self.refresh()

    def refresh(self) -> None:
        """Link runs that are new; one that was deleted loses its link. A name stays once it is given.

        Raises:
            OSError: Links cannot be made here.
        """
        for run, link in [*self._known.items()]:
            if not run.is_dir():
                link.unlink(missing_ok=True)
                del self._known[run]
        for run in sorted(_with_curves(self.runs)):
            if run not in self._known:
                self._known[run] = self._link(run)

    def _link(self, run: Path) -> Path:
        name = short_name(run, self.runs)[:_LONGEST]
        taken = {link.name for link in self._known.values()}
        names = (name, *(f"{name} ({count})" for count in range(2, len(taken) + 3)))
        free = next(text for text in names if text not in taken)
        (self.place / free).symlink_to(run, target_is_directory=True)
        return self.place / free


def _with_curves(folder: Path) -> Iterator[Path]:
    """Find the folders that hold files of TensorBoard's; it looks into those below one by itself."""
    seen = set[tuple[int, int]]()
    for place, below, files in os.walk(folder, followlinks=True):
        facts = Path(place).stat()
        if any(_EVENTS in name for name in files) and (facts.st_dev, facts.st_ino) not in seen:
            yield Path(place)
        if any(_EVENTS in name for name in files) or (facts.st_dev, facts.st_ino) in seen:
            below.clear()
        seen.add((facts.st_dev, facts.st_ino))


def short_name(run: Path, runs: Path) -> str:
    """Name a run by what tells it from others, that first: `lr=0.1,seed=0 wine_mlp 01-31 12-00`.

    Args:
        run: The folder of the run; one whose name is the user's own goes by its path.
        runs: The folder that paths are seen from.
    """
    found = dated(run)
    if found is None:
        below = run.relative_to(runs).parts if run.is_relative_to(runs) else ()
        return " ".join(below) or run.name
    job = [_last_names(found.job.removeprefix("/"))] if found.job else []
    return " ".join([*job, found.name, found.date[5:], found.time[:5]])


def _last_names(job: str) -> str:
    """Shorten `optim.lr=0.1,seed=0` to the last part of each key, where that is of one key only."""
    parts = [part.partition("=") for part in job.split(",")]
    last = {key: key.rpartition(".")[2] for key, mark, _ in parts if mark}
    count = Counter(last.values())
    return ",".join((last[key] if mark and count[last[key]] == 1 else key) + mark + value for key, mark, value in parts)
