"""Reading TensorBoard's event files back."""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.loggers.layout import TAG

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
