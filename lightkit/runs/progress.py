"""How far a run without a result is, as `metrics.jsonl` tells."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.ranking import improves
from lightkit.common.reading import UnreadableError, read_file
from lightkit.common.shapes import read_row


def read_progress(folder: Path, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best monitored value so far and the epochs done.

    Args:
        folder: The run's folder.
        metrics: The node `metrics` of its configuration.

    Returns:
        `epochs`, and where the monitored value has been logged its `name`, the best `value` with its `step`, and the
        `values` of that row; empty where nothing has been logged.
    """
    try:
        lines = read_file(folder / run_files.METRICS, sys.maxsize).split(b"\n")
    except (FileNotFoundError, UnreadableError):
        return {}
    last = next((row for row in map(_row, reversed(lines)) if row), {})
    name, mode = metrics.get("monitor"), metrics.get("mode") or "min"
    found: dict[str, Any] = {"epochs": last["epoch"]} if isinstance(last.get("epoch"), int) else {}
    if not isinstance(name, str):
        return found
    mark, best = json.dumps(name).encode(), None
    for line in lines:
        value = _row(line).get(name) if mark in line else None  # most lines are about single steps
        if isinstance(value, int | float) and improves(float(value), best, mode=str(mode)):
            best = float(value)
            row = _row(line)
            values = {key: each for key, each in row.items() if "/" in key}
            found |= {"name": name, "value": best, "step": row.get("step"), "values": values}
    return found


def _row(line: bytes) -> dict[str, Any]:
    """Read a line; empty where it is none, such as the last one of a run that is writing it."""
    try:
        return read_row(line)
    except UnreadableError:
        return {}
