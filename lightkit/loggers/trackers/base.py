"""What trackers have in common: the id of a run there, the rows and pictures that are there already, groups of runs."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.ledger import MACHINE
from lightkit.common.reading import UnreadableError, opened, parse_object, read_file
from lightkit.loggers.base import Logger
from lightkit.loggers.files import line, write_json
from lightkit.loggers.tensorboard import stretched
from lightkit.processes.files import write_whole

Row = dict[str, Any]


class Relations(NamedTuple):
    """What a run is to others."""

    name: str
    """Its own name, for lists of runs."""
    group: str = ""
    """The name of its sweep or ensemble; empty for a run of its own."""
    role: str = "run"
    """`run`, `job` of a sweep, or `member` of an ensemble."""
    parent: Path | None = None
    """The folder of the ensemble that a member belongs to."""


def relations(folder: Path) -> Relations:
    """Tell from its folder what a run is to others."""
    above = folder.parent
    if above.name == run_files.MEMBERS:
        whole = above.parent
        return Relations(f"{relations(whole).name}/{folder.name}", "/".join(whole.parts[-2:]), "member", whole)
    if (above / run_files.SWEEP_JOURNAL).exists():
        return Relations(f"{above.name}/{folder.name}", "/".join(above.parts[-2:]), "job")
    return Relations(folder.name)


def need(module: str, extra: str) -> None:
    """Refuse to go on without a package.

    Raises:
        UserError: It is not installed.
    """
    if find_spec(module) is None:
        fix = f"pip install 'lightkit[{extra}]'"
        raise UserError(f"this logger needs the package {module}", fix=fix, family="package-missing")


@dataclass(frozen=True)
class Medium:
    """A picture, text or histogram."""

    name: str
    """Its name."""
    step: int
    """Optimizer steps taken."""
    at: int
    """Rows logged before it."""
    files: Sequence[str] = ()
    """Pictures, as files of PNG in the folder of trackers."""
    text: str = ""
    """Markdown."""
    histogram: tuple[Sequence[float], Sequence[float]] = ((), ())
    """Counts, and the edges between and around them."""


class Tracker(Logger):
    """Sends a run to another program, which has its rows once each, however often the run is stopped and goes on.

    A subclass opens a run there (`open`), writes rows (`write`) and shows pictures (`show`). Each may raise, and is
    then called again.

    Args:
        folder: The run's folder.
        monitor: Name of the value that decides what is best.
        mode: Whether `min` or `max` of it is better.
        kind: Names its files.
    """

    patient = True

    def __init__(self, folder: Path, monitor: str, mode: str, kind: str) -> None:
        self.folder, self.monitor, self.mode, self.kind = Path(folder), monitor, mode, kind
        self.home = self.folder / run_files.TRACKERS
        self.best: tuple[float, int] | None = None
        self.at = 0
        self._ahead = deque[Row]()
        self._noted: int | None = None
        self._shown = set[tuple[str, int]]()

    def open(self) -> int | None:
        """Open a run, or the one that was opened before, and return how many rows it has; None for one to fill anew."""
        raise NotImplementedError

    def write(self, row: Row, at: int) -> None:
        """Write one row; it is the one of that number, from 0."""
        raise NotImplementedError

    def show(self, medium: Medium) -> None:
        """Show a picture, text or histogram."""

    def has(self, medium: Medium, there: int) -> bool:
        """Tell whether a medium that was shown is there, beside so many rows."""
        return medium.at <= there

    def diverge(self, count: int) -> None:
        """Note that the last rows there, so many, will not come again: the run has changed since."""

    def start(self, step: int, kept: Sequence[Mapping[str, Any]] = ()) -> None:
        """Go on with the run there: what is missing is sent, and what is there already is not sent again."""
        rows, self.best, self._noted = [_finite(row) for row in kept], None, None
        there, known = self.open(), [_finite(row) for row in self._lines(".jsonl")]
        if there is not None:
            ahead = known[len(rows) : there]
            write_whole(self._file(".jsonl"), "".join(map(line, [*rows, *ahead])))
            self._ahead, self._noted = deque(ahead), len(rows)
        media = [Medium(**found) for found in self._lines("-media.jsonl")]
        here = [medium for medium in media if there is not None and self.has(medium, there)]
        again = [medium for medium in media if medium.step <= step and medium not in here]
        self._shown = {(medium.name, medium.step) for medium in (*here, *again)}
        write_whole(self._file("-media.jsonl"), "".join(map(_line, [*here, *again])))
        for at, row in enumerate(rows):
            self._show_again(again, at)
            self._rate(row)
            if at >= (there or 0):
                self.write(row, at)
        self.at = len(rows)
        self._show_again(again, self.at)

    def _show_again(self, media: Sequence[Medium], at: int) -> None:
        for medium in media:
            if medium.at == at:
                self.show(medium)

    def _file(self, end: str) -> Path:
        self.home.mkdir(exist_ok=True)
        return self.home / f"{self.kind}{end}"

    def _lines(self, end: str) -> Iterator[Row]:
        with suppress(FileNotFoundError), opened(self._file(end)) as file:
            for text in file:
                with suppress(UnreadableError):  # torn by a crash
                    yield parse_object(text)

    def _append(self, end: str, text: str) -> None:
        with self._file(end).open("a", encoding="utf-8") as file:
            file.write(text)

    def _rate(self, row: Row) -> None:
        value = row.get(self.monitor, math.nan)
        better = self.best is None or (value <= self.best[0] if self.mode == "min" else value >= self.best[0])
        if not math.isnan(value) and better:
            self.best = value, row["step"]

    def scalars(self, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Send one row, unless it is there from before the run was stopped."""
        row = _finite({"step": step, "epoch": epoch, **values})
        if self._ahead and _told(self._ahead[0]) == _told(row):
            self._ahead.popleft()
            self._noted = self.at + 1
        else:
            self._send(row)
        self._rate(row)
        self.at += 1

    def _send(self, row: Row) -> None:
        if self._ahead:
            known = [_finite(row) for row in self._lines(".jsonl")][: self.at]
            self.diverge(len(self._ahead))
            write_whole(self._file(".jsonl"), "".join(map(line, known)))
            self._ahead.clear()
        if self._noted == self.at:  # before it is sent: what the tracker has is known here for sure
            self._append(".jsonl", line(row))
            self._noted += 1
        self.write(row, self.at)

    def figure(self, name: str, figure: Any, *, step: int) -> None:
        """Show a matplotlib figure."""
        from lightkit.common.drawing import pixels  # matplotlib is slow to import

        self._show(name, step, pictures=lambda: [pixels(figure)[..., :3].copy()])

    def images(self, name: str, images: Any, *, step: int) -> None:
        """Show pictures, each stretched to the full range of grey or colour."""
        self._show(name, step, pictures=lambda: stretched(images).expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())

    def text(self, name: str, markdown: str, *, step: int) -> None:
        """Show Markdown."""
        self._show(name, step, text=markdown)

    def histogram(self, name: str, values: Any, *, step: int) -> None:
        """Show a histogram of the values that are finite."""
        import numpy as np

        numbers = values.detach().float().cpu().flatten().numpy()
        counts, edges = np.histogram(numbers[np.isfinite(numbers)], bins=64)
        self._show(name, step, histogram=(counts.tolist(), edges.tolist()))

    def _show(self, name: str, step: int, *, pictures: Any = None, **content: Any) -> None:
        if (name, step) in self._shown:
            return
        files = list[str]()
        if pictures is not None:
            from matplotlib.image import imsave

            for number, picture in enumerate(pictures()):
                files.append(f"{self.kind}-media/{re.sub('[^-_a-zA-Z0-9/]', '_', name)}/{step:07d}-{number}.png")
                path = self.home / files[-1]
                path.parent.mkdir(parents=True, exist_ok=True)
                imsave(path, picture)
        medium = Medium(name, step, self.at, tuple(files), **content)
        self.show(medium)
        self._shown.add((name, step))
        self._append("-media.jsonl", _line(medium))


def recalled(folder: Path, kind: str) -> dict[str, Any]:
    """Return what a tracker has remembered of a run, by the run's folder."""
    with suppress(FileNotFoundError, UnreadableError):
        return parse_object(read_file(folder / run_files.TRACKERS / f"{kind}.json"))
    return {}


def remember(folder: Path, kind: str, **facts: Any) -> None:
    """Keep what a tracker knows of a run in the run's folder, beside what is there."""
    write_json(folder / run_files.TRACKERS / f"{kind}.json", {**recalled(folder, kind), **facts})


def chosen_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """List the files of a run that some patterns mean."""
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found if path.is_file() and path.resolve().is_relative_to(folder.resolve()))


def _line(medium: Medium) -> str:
    return json.dumps(asdict(medium)) + "\n"


def _finite(row: Mapping[str, Any]) -> Row:
    """Return a row with NaN for each value that is no finite number, as `metrics.jsonl` has null."""
    numbers = {name: math.nan if value is None else value for name, value in row.items()}
    return {name: value if math.isfinite(value) else math.nan for name, value in numbers.items()}


def _told(row: Row) -> dict[str, str]:
    """Return what a row says as text, without when and how fast it was measured."""
    return {name: str(value) for name, value in row.items() if name != "time" and not name.startswith(MACHINE)}
