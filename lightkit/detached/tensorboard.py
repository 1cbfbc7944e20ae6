"""TensorBoard in this process, over the runs below a folder as links with short names."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.text import visible
from lightkit.detached.boards import free_port
from lightkit.runs.catalog import dated

_TRIES = 5
RELOAD_SECONDS = 5
_USUAL = re.compile(
    r"^\s*$|TensorFlow installation not found|NOTE: Using experimental fast data|--load_fast=false"
    r"|tensorboard/issues/4784|Press CTRL\+C"
)
"""Lines on standard error that tell a user nothing."""
_EVENTS = "tfevents"
_REFRESH_SECONDS = 5.0
_LONGEST_NAME = 200
"""Characters of a name; file systems take a few more."""


class LineFilter(io.TextIOBase):
    """A stream that passes whole lines on, without those that TensorBoard prints every time.

    Args:
        stream: Takes the others. It is given here, as `sys.stderr` may be this filter by the time of a line.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._left = stream, ""

    def write(self, text: str) -> int:
        """Take a piece of text."""
        *lines, self._left = (self._left + text).split("\n")
        for line in lines:
            if not _USUAL.search(line):
                self._stream.write(f"{visible(line.rstrip())}\n")
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind."""
        self._stream.flush()


@contextmanager
def serving(runs: Path, *, host: str, wanted: int | None, passed: Callable[[int], None]) -> Iterator[int]:
    """Serve TensorBoard while inside.

    Args:
        runs: Folder with the runs.
        host: Address to listen on.
        wanted: The port that was asked for; None where any will do.
        passed: Called with each of the usual ports that is taken.

    Yields:
        The port.

    Raises:
        UserError: It cannot listen there.
    """
    with contextlib.redirect_stderr(LineFilter(sys.stderr)):
        import tensorboard.default
        import tensorboard.main_lib
        import tensorboard.program
        from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin

        class OrderedScalars(CustomScalarsPlugin):
            """Sends the curves of a chart in the order of their tags.

            The page gives out squares and diamonds in the order in which the curves of a run arrive. That is another
            one in each run otherwise, and so `train/loss` has squares here and diamonds there.
            """

            def scalars_impl(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
                answer = dict(super().scalars_impl(*args, **kwargs))
                return {
                    key: dict(sorted(part.items())) if isinstance(part, dict) else part for key, part in answer.items()
                }

        tensorboard.main_lib.global_init()
        plugins = [OrderedScalars if it is CustomScalarsPlugin else it for it in tensorboard.default.get_plugins()]
        for left in reversed(range(_TRIES)):
            port = free_port(host, wanted=wanted, passed=passed)
            board = tensorboard.program.TensorBoard(plugins=plugins)
            board.configure(logdir=str(runs), host=host, port=port, reload_interval=RELOAD_SECONDS)
            try:
                board.launch()
                break
            except tensorboard.program.TensorBoardServerException as error:
                if wanted is None and left:  # somebody took it since we looked
                    continue
                fix = "another --port, or none for a free one"
                raise UserError(error.msg, key=f"{host}:{port}", fix=fix, family="wrong-command") from error
        sys.stderr.flush()
        yield port


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
