"""Taking event files back to the step of a checkpoint: whatever reads them finds each point once.

TensorBoard itself hides what a later part of a run has purged. Other readers of event files do not, so the records are
taken out. The order makes it safe to be killed at any moment: first a new file, whole from the start, tells readers to
forget everything from the step on and holds what of that step was logged before the checkpoint; then the older files
are cut, oldest first, each replaced as a whole. Until that is done what is too much lies before the new file's order to
forget it, and the next resume takes it out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lightkit.loggers.events import read_events
from lightkit.loggers.layout import layouts
from lightkit.processes.files import replacing

_SCRATCH = ".events.unfinished"
"""Name of an unfinished file; TensorBoard would read one whose name has `tfevents` in it."""
_BLOCK_BYTES = 1 << 20
_FIRST_RECORDS = 4


@dataclass
class Cut:
    """What of an event file stays.

    Args:
        path: The file.
        spans: Beginning and end of the stretches of bytes that stay.
        carried: Records of the step itself, to be moved to the new file.
        layout: The last layout of charts among what stays; empty where there is none.
    """

    path: Path
    spans: list[tuple[int, int]] = field(default_factory=list)
    carried: list[Any] = field(default_factory=list)
    layout: bytes = b""

    def keep(self, begin: int, end: int) -> None:
        """Let a stretch stay; join it with the one before where they touch."""
        if self.spans and self.spans[-1][1] == begin:
            begin = self.spans.pop()[0]
        self.spans.append((begin, end))

    def apply(self) -> None:
        """Replace the file; one of which all stays is not touched.

        It is there afterwards even if nothing is left in it: a TensorBoard that reads it would wait for it forever.
        """
        if sum(end - begin for begin, end in self.spans) != self.path.stat().st_size:
            with _replacing(self.path) as file:
                self._copy(file)

    def _copy(self, target: IO[bytes]) -> None:
        with self.path.open("rb") as source:
            for begin, end in self.spans:
                source.seek(begin)
                while begin < end:
                    block = source.read(min(_BLOCK_BYTES, end - begin))
                    begin += len(block)
                    target.write(block)


def plan(files: Sequence[Path], *, step: int, rows: int, repeated: Collection[str], own: Collection[str]) -> list[Cut]:
    """Plan what stays of the event files of a run when it goes on from a step; nothing is changed yet.

    Args:
        files: The files, in the order in which TensorBoard reads them.
        step: Optimizer steps of the checkpoint.
        rows: Rows of values that were logged at that very step before it was saved: what comes after that many is
            repeated by the run.
        repeated: Tags of these rows, which are written once more.
        own: First parts of the tags of all such rows; others are of somebody else's writer.
    """
    orders = [_purges_from(file) for file in files]
    limits = [min(orders[number + 1 :], default=math.inf) for number in range(len(files))]
    sieve = _Sieve(step, rows, repeated, own)
    return [sieve.sift(file, limit) for file, limit in zip(files, limits)]


def publish(path: Path, step: int, events: Sequence[Any]) -> None:
    """Write an event file that begins with the order to forget everything from a step on.

    Args:
        path: The file.
        step: That step.
        events: What else is in it.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter

    order = Event(step=step, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START))
    # Twice: the first such order that TensorBoard sees of a run passes for its beginning and makes it forget nothing.
    begins = [Event(wall_time=order.wall_time, file_version="brain.Event:2"), order, order]

    with _replacing(path) as file:
        writer = RecordWriter(file)
        for event in (*begins, *events):
            writer.write(event.SerializeToString())


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    with replacing(path, scratch=_SCRATCH, forced=True) as unfinished, unfinished.open("xb") as file:
        yield file


def write(path: Path, events: Sequence[Any]) -> None:
    """Write a new event file; nothing is forced to the disk."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in (Event(wall_time=time.time(), file_version="brain.Event:2"), *events):
            writer.write(event.SerializeToString())


class _Sieve:
    """Goes through files; the arguments are `plan`'s. From a file's first record after the checkpoint on, all goes."""

    def __init__(self, step: int, rows: int, repeated: Collection[str], own: Collection[str]) -> None:
        self.step, self.left, self.repeated, self.own = step, rows, {*repeated}, own

    def sift(self, file: Path, limit: float) -> Cut:
        """Find what stays of a file, of which a later one orders to forget what is from a limit on."""
        cut, last, over = Cut(file), min(limit, self.step), False
        for begin, end, event in read_events(file):
            if event is not None and (event.HasField("file_version") or event.HasField("session_log")):
                cut.keep(begin, end)
                continue
            if event is not None and not _of_hparams(event):
                here = 0 < event.step == self.step < limit
                numbers = (value.tag for value in event.summary.value if value.HasField("simple_value"))
                self.left -= here and any(tag.partition("/")[0] in self.own for tag in numbers)
                over = over or event.step > last or (here and self.left < 0)
                if here and not over and not _tags(event) <= self.repeated:
                    cut.carried.append(event)
            if not over and (event is None or (event.step < last and not _of_hparams(event))):
                cut.keep(begin, end)
                cut.layout = (layouts(event.summary.value) or [cut.layout])[-1] if event is not None else cut.layout
        return cut


def _purges_from(file: Path) -> float:
    """Return the step from which on a file tells readers to forget what they read; infinite for others."""
    for _, (_, _, event) in zip(range(_FIRST_RECORDS), read_events(file)):
        if event is not None and event.session_log.status == event.session_log.START:
            return int(event.step)
    return math.inf


def _tags(event: Any) -> set[str]:
    return {value.tag for value in event.summary.value}


def _of_hparams(event: Any) -> bool:
    """Tell whether these are hyperparameters or a status, which have no step."""
    from tensorboard.plugins.hparams import metadata

    return bool(_tags(event) & {metadata.SESSION_START_INFO_TAG, metadata.SESSION_END_INFO_TAG})
