"""Reading TensorBoard's event files back."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from lightkit.common import run_files


def repeated(folder: Path | str) -> dict[tuple[str, int], int]:
    """Count the tags that stand more than once at a step in the records of all files of a run.

    Args:
        folder: The directory of the run.
    """
    from lightkit.loggers.rewind import read_events

    found = Counter(
        (value.tag, int(event.step))
        for file in Path(folder).glob(run_files.EVENTS_PATTERN)
        for _, _, event in read_events(file)
        if event is not None
        for value in event.summary.value
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
