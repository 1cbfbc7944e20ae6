"""The first step that two runs computed otherwise, by what `logger.trace` has kept of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.runner.comparison import first_mismatch, read_trace

_WHAT = {"rows": "batch", "batch": "batch", "loss": "output", "gradients": "gradient"}
"""What differs, by the fact of a trace; all others are about weights."""


@dataclass(frozen=True)
class Difference:
    """The first thing that two runs computed otherwise.

    Attributes:
        step: Optimizer step, counted from 1; 0 is the state before the first one.
        module: Dotted name of the module, or of the weight; empty where it is not known, and of a batch.
        what: `output`, `gradient`, `weight` or `batch`.
        size: Largest absolute difference; None where it is not known.
        after: Newest step up to which the runs are known to be the same; -1 where that is none.
        member: The member of an ensemble that it is about; empty in a plain run.
    """

    step: int
    module: str
    what: str
    size: float | None
    after: int = -1
    member: str = ""


def first_difference(one: Path, other: Path, root: Path) -> Difference | None:
    """Return the first thing that two runs computed otherwise; None where their traces do not differ, or are not there.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
        root: The project.
    """
    first, second = (traces(folder) for folder in (one, other))
    found = first_mismatch(first, second, common=True)
    if found is None:
        return None
    step, member = found.row["step"], found.row["member"]
    steps = {row["step"] for row in first if row["member"] == member}
    before = [row["step"] for row in second if row["member"] == member and row["step"] in steps and row["step"] < step]
    return Difference(step, "", _WHAT.get(found.fact, "weight"), None, max(before, default=-1), member)


def traces(folder: Path) -> list[dict[str, Any]]:
    """Read the trace of a run, or those of all its models.

    Args:
        folder: Folder of the run.
    """
    folders = {"": folder, **{place.name: place for place in sorted((folder / run_files.MEMBERS).glob("*"))}}
    return [{**row, "member": name} for name, at in folders.items() for row in read_trace(at / run_files.TRACE)]
