"""TensorBoard's event files: read back, taken back to the step of a checkpoint, and the layout of their charts.

After a resume whatever reads them finds each point once. TensorBoard itself hides what a later part of a run has
purged. Other readers of event files do not, so the records are taken out. The order makes it safe to be killed at any
moment: first a new file, whole from the start, tells readers to forget everything from the step on and holds what of
that step was logged before the checkpoint; then the older files are cut, oldest first, each replaced as a whole. Until
that is done what is too much lies before the new file's order to forget it, and the next resume takes it out.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from lightkit.common import run_files
from lightkit.processes.files import replacing

_HEAD = struct.Struct("<QI")
_FOOT_BYTES = 4


def read_events(file: Path) -> Iterator[tuple[int, int, Any]]:
    """Yield where each record begins and ends, and its event.

    A last record that a kill has torn is left out. Where a file is damaged, the event of what cannot be read is None.

    Args:
        file: An event file.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    with file.open("rb") as source:
        size, begin = os.fstat(source.fileno()).st_size, 0
        while len(head := source.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            end = begin + _HEAD.size + length + _FOOT_BYTES
            if masked_crc32c(head[:8]) != checksum:
                yield begin, size, None
                return
            if end > size:
                return
            try:
                event = Event.FromString(source.read(length))
            except Exception:  # protobuf's class for it has moved between its versions
                event = None
            yield begin, end, event
            source.seek(end)
            begin = end


def repeated(folder: Path | str) -> dict[tuple[str, int], int]:
    """Count the tags that stand more than once at a step in the records of all files of a run.

    A layout is none of a curve's points: of several the last counts, also at one step.

    Args:
        folder: The directory of the run.
    """
    found = Counter(
        (value.tag, int(event.step))
        for file in Path(folder).glob(run_files.EVENTS_PATTERN)
        for _, _, event in read_events(file)
        if event is not None
        for value in event.summary.value
        if value.tag != TAG
    )
    return {place: count for place, count in found.items() if count > 1}


def read_scalars(folder: Path | str) -> dict[str, list[tuple[int, float]]]:
    """Read the points of every curve as TensorBoard shows them, without what a resumed run purged.

    Args:
        folder: The directory of one run; an empty or missing one has no curves.

    Returns:
        (step, value) by tag, in the order they were written.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not Path(folder).is_dir():
        return {}
    events, told = EventAccumulator(str(folder), size_guidance={"scalars": 0}), logging.getLogger("tensorboard")
    level = told.level
    told.setLevel(logging.ERROR)  # it warns of every purge
    try:
        events.Reload()
    finally:
        told.setLevel(level)
    return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in events.Tags()["scalars"]}


def leave_failures_to_the_writer() -> None:
    """Print no traceback where the thread of a writer fails, as on a full disk: the next write raises the same."""
    usual = threading.excepthook
    if getattr(usual, "knows_writers", False):
        return

    def hook(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is None or getattr(failure.thread, "exception", None) is not failure.exc_value:
            usual(failure)

    hook.knows_writers = True  # type: ignore[attr-defined]
    threading.excepthook = hook


TAG = "custom_scalars__config__"
"""Tag that TensorBoard reads a layout from; of several in a run the last counts."""
RESULTS, OPTIMIZATION, MACHINE = "training and validation", "optimization", "machine"
CATEGORIES = (RESULTS, OPTIMIZATION, MACHINE)
"""Parts of the page. Every layout has all of them in this order: TensorBoard merges those of several runs by their
names, and loses charts where a later run brings a category of its own."""
_CURVE = re.compile(r"(?:train|val)/(?P<name>.+)")
_OTHERS = (
    (OPTIMIZATION, "learning rate", "vitals/lr/"),
    (OPTIMIZATION, "gradient norm", "vitals/grad/norm$"),
    (MACHINE, "samples per second", "vitals/speed/samples_per_second$"),
    (MACHINE, "tokens per second", "vitals/speed/tokens_per_second$"),
    (MACHINE, "MFU (share of the peak)", "vitals/speed/mfu$"),
    (MACHINE, "seconds of waiting for data", "vitals/speed/data_wait$"),
    (MACHINE, "GPU: utilisation (%)", r"vitals/system/gpu\d+_(mig_)?utilisation$"),
    (MACHINE, "GPU: memory (GiB)", r"vitals/system/gpu\d+_(mig_)?memory_gib$"),
    (MACHINE, "GPU: power (W)", r"vitals/system/gpu\d+_(mig_)?power_w$"),
    (MACHINE, "GPU: temperature (°C)", r"vitals/system/gpu\d+_(mig_)?temperature_c$"),
    (MACHINE, "CPU (%)", r"vitals/system/cpu(_machine)?_percent$"),
    (MACHINE, "memory (%)", "vitals/system/ram_used_percent$"),
)
"""Category, title and tags, as a regular expression, of the charts of what is not a result."""
_PLACES = {title: place for place, (_, title, _) in enumerate(_OTHERS)}


@lru_cache(4096)
def _charts_of(tag: str) -> list[tuple[str, str, str]]:
    """Return category, title and tags of the charts that a curve belongs to."""
    found = [(category, title, pattern) for category, title, pattern in _OTHERS if re.match(pattern, tag)]
    if curve := _CURVE.fullmatch(tag):
        # the loss of single steps is as rough as a gradient: beside means of epochs it hides them
        category = OPTIMIZATION if tag.endswith("_step") else RESULTS
        found.append((category, curve["name"], f"(train|val)/{re.escape(curve['name'])}$"))
    return found


class Layout:
    """The charts for the curves that a run has so far. A value of training and of validation has one chart for both."""

    def __init__(self) -> None:
        self._charts: dict[str, dict[str, str]] = {category: {} for category in CATEGORIES}
        self._is_written = True

    def add(self, tags: Iterable[str]) -> None:
        """Make room for curves.

        Args:
            tags: Their tags; those that no chart is for are left out.
        """
        for tag in tags:
            for category, title, pattern in _charts_of(tag):
                if title not in self._charts[category]:
                    self._charts[category][title], self._is_written = pattern, False

    def unwritten(self) -> list[Any]:
        """Return the layout as values of a summary that is written then; nothing where it is as it was before."""
        if self._is_written:
            return []
        self._is_written = True
        return _layout_of(tuple((category, *found.items()) for category, found in self._charts.items()))


@lru_cache(64)
def _layout_of(charts: tuple[tuple[Any, ...], ...]) -> list[Any]:
    """Return the layout of charts, which many runs have alike: of each category titles with tags."""
    from torch.utils.tensorboard.summary import custom_scalars

    made = dict[str, Any]()
    for category, *own in charts:
        own.sort(key=lambda chart: _PLACES.get(chart[0], -1))
        made[category] = {title: ["Multiline", [tags]] for title, tags in own}
    return list(custom_scalars(made).value)


def layouts(values: Iterable[Any]) -> list[bytes]:
    """Return the layouts among values of summaries, as they are written."""
    return [value.tensor.string_val[0] for value in values if value.tag == TAG]


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


def packed(files: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the contents of files of events; the checksums of all their records are computed together."""
    from lightkit.loggers.records import checksums

    contents = [event for events in files for event in events]
    sizes = [struct.pack("<Q", len(content)) for content in contents]
    records = map(b"".join, zip(sizes, checksums(sizes), contents, checksums(contents)))
    return [b"".join(islice(records, len(events))) for events in files]


def write(folder: Path, content: bytes) -> None:
    """Write such a file into the folder of a run; nothing is forced to the disk."""
    now = int(time.time())
    name = f"{run_files.EVENTS_PATTERN.removesuffix('*')}{now:010d}.{socket.gethostname()}.{os.getpid()}"
    (folder / name).write_bytes(content)


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
