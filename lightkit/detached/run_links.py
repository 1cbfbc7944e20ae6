"""The runs below a folder as links with short names, for TensorBoard."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightkit.common import run_files
from lightkit.runs.catalog import dated

_EVENTS = "tfevents"
_REFRESH_SECONDS = 5.0
_LONGEST_NAME = 200
"""Characters of a name; file systems take a few more."""


@contextmanager
def named_runs(folder: Path, place: Path) -> Iterator[Path]:
    """Fill a folder in which the runs have short names while inside; where no links can be made, give `folder` back.

    Args:
        folder: Folder with the runs at any depth.
        place: Where the links go; made, and gone afterwards. Links that are there go first.
    """
    ended, links = threading.Event(), RunLinks(folder, place)
    try:
        place.mkdir(parents=True, exist_ok=True)
        _clear(place)
        links.refresh()
    except OSError:
        yield folder.resolve()
        return
    follower = threading.Thread(target=links.follow, args=(ended,), daemon=True)
    follower.start()
    try:
        yield place
    finally:
        ended.set()
        follower.join()
        with suppress(OSError):
            _clear(place)
            place.rmdir()


def _clear(place: Path) -> None:
    for link in place.iterdir():
        if link.is_symlink():
            link.unlink()


class RunLinks:
    """A folder with a link to every run below another folder.

    TensorBoard calls a run by its folder, and its lists have room for the first letters of a path only: here the links
    are called after what tells the runs from each other.

    Args:
        runs: Folder with the runs at any depth.
        place: Where the links go.
    """

    def __init__(self, runs: Path, place: Path) -> None:
        self.runs, self.place = runs.resolve(), place
        self._known = dict[Path, Path]()

    def follow(self, ended: threading.Event) -> None:
        """Take new runs up as they come, until the end."""
        while not ended.wait(_REFRESH_SECONDS):
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
            if run in self._known:
                continue
            name = short_name(run, self.runs)[:_LONGEST_NAME]
            taken = {link.name for link in self._known.values()}
            names = (name, *(f"{name} ({count})" for count in range(2, len(taken) + 3)))
            link = self.place / next(text for text in names if text not in taken)
            link.symlink_to(run, target_is_directory=True)
            self._known[run] = link


def _with_curves(folder: Path) -> Iterator[Path]:
    """Find the folders that hold files of TensorBoard's; it looks into those below one by itself."""
    seen = set[tuple[int, int]]()
    for place, below, files in os.walk(folder, followlinks=True):
        facts = Path(place).stat()
        # a run of several models has curves of its own only when it has ended; those of its members belong to it
        is_run = any(_EVENTS in name for name in files) or (run_files.CONFIG in files and run_files.MEMBERS in below)
        if is_run and (facts.st_dev, facts.st_ino) not in seen:
            yield Path(place)
        if is_run or (facts.st_dev, facts.st_ino) in seen:
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
    # `optim.lr=0.1,seed=0` is shortened to the last part of each key, where that is of one key only.
    parts = [part.partition("=") for part in found.job.removeprefix("/").split(",")]
    last = {key: key.rpartition(".")[2] for key, mark, _ in parts if mark}
    count = Counter(last.values())
    names = [(last[key] if mark and count[last[key]] == 1 else key) + mark + value for key, mark, value in parts]
    job = [",".join(names)] if found.job else []
    return " ".join([*job, found.name, found.date[5:], found.time[:5]])
