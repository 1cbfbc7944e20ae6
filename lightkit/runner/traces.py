"""The first step that two runs computed otherwise, by what `logger.trace` has kept of them, and what of it in a replay.

A replay makes a run again from its start, or from a checkpoint that both runs have, in a process and a folder of its
own, with the code that the run has kept, and writes down what each module computes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lightkit.checkpoint.compare import compare
from lightkit.checkpoint.reading import read
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import yaml_or_nothing
from lightkit.config.project import CODE
from lightkit.config.provenance import is_ours
from lightkit.runner.comparison import first_mismatch, line_key, read_trace
from lightkit.runner.verify import SIGKILL, TracedJob, traced
from lightkit.runs.code import earlier_code
from lightkit.runs.reading import read_config

_WHAT = {"rows": "batch", "batch": "batch", "loss": "output", "gradients": "gradient"}
"""What differs, by the fact of a trace; all others are about weights."""


@dataclass(frozen=True)
class FirstDifference:
    """The first thing that two runs computed otherwise.

    Attributes:
        step: Optimizer step, counted from 1; 0 is the state before the first one.
        module: Dotted name of the module, or of the weight; `rows`, or the place of a tensor, of a batch; empty where
            it is not known.
        what: `output`, `gradient`, `weight` or `batch`.
        size: Largest absolute difference; None where it is not known.
        relative: The same as a share of the largest absolute value of the first run.
        after: Newest step up to which the runs are known to be the same; -1 where that is none.
        member: The member of an ensemble that it is about; empty in a plain run.
        note: Why neither the very step nor the module is known; empty where they are.
    """

    step: int
    module: str
    what: str
    size: float | None
    relative: float | None = None
    after: int = -1
    member: str = ""
    note: str = ""

    def __str__(self) -> str:
        place = (
            f"after step {max(0, self.after)} and up to step {self.step}"
            if self.note and self.step
            else f"at step {self.step}"
        )
        about = f" of {self.module}" if self.module else f" of member {self.member}" if self.member else ""
        size = "" if self.size is None else f", by {self.size:.3g} at most ({self.relative:.2g} of the largest value)"
        return f"{place} the {self.what}{about} differs first{size}{f': {self.note}' if self.note else ''}"


def first_difference(one: Path, other: Path, tell: Callable[[str], object] = str) -> FirstDifference | None:
    """Return the first thing that two runs computed otherwise; None where their traces do not differ, or are not there.

    Args:
        one: Folder of the first run.
        other: Folder of the second.
        tell: Told what is about to be done.
    """
    first, second = (traces(folder) for folder in (one, other))
    known = {line_key(row) for row in first}
    common = [row for row in second if line_key(row) in known]
    found = first_mismatch(first, common)
    if found is None:
        return None
    step, member = found.row["step"], found.row["member"]
    after = max((row["step"] for row in common if row["member"] == member and row["step"] < step), default=-1)
    told = FirstDifference(step, "", _WHAT.get(found.fact, "weight"), None, after=after, member=member)
    try:
        for run in (one, other):
            text = read_config(run)
            several = (yaml_or_nothing(text).get("device") or {}).get("nproc", 1) != 1
            if member or several or not is_ours(run.resolve(), text):
                raise UserError("members, runs of several processes and runs from elsewhere are not replayed")
            if earlier_code(run):
                raise UserError("a run that was resumed with other code is not replayed")
        with tempfile.TemporaryDirectory(prefix="lightkit-why-", ignore_cleanup_errors=True) as scratch:
            return _replayed(told, (one, other), Path(scratch), tell)
    except UserError as error:
        return replace(told, note=error.what)


def _replayed(
    told: FirstDifference, runs: tuple[Path, Path], scratch: Path, tell: Callable[[str], object]
) -> FirstDifference:
    """Make both runs again up to a step that differs, and once more for the values of what differs first."""
    saved = [{path.name for path in (run / run_files.CHECKPOINTS).glob(run_files.CHECKPOINT_PATTERN)} for run in runs]
    steps = {int(name[5:-3]): name for name in saved[0] & saved[1] if name[5:-3].isdecimal()}
    begin = max((step for step in steps if step <= told.after), default=0)
    tell(f"replaying both runs from {f'step {begin}' if begin else 'the start'} to step {told.step}")
    end_at = ("step" if told.step else "start", told.step, 0)
    job = TracedJob(folder=str(scratch), trace="", after=told.after, end_at=end_at, resume=begin > 0)
    found = first_mismatch(*(_replay(job, run, steps.get(begin), f"all-{at}") for at, run in enumerate(runs)))
    if found is None:
        return replace(told, note="replayed with the data and packages of now, both compute the same")
    key = (found.row["phase"], found.row["step"], found.row["number"], found.row.get("module", ""), found.fact)
    what = _WHAT.get(found.fact, key[0] if found.fact in ("value", "moment") else "weight")
    if found.fact == "moment":  # a module that only the second run has
        return FirstDifference(key[1], key[3], what, None, after=told.after)
    for at, run in enumerate(runs):
        _replay(replace(job, keep=key), run, steps.get(begin), f"one-{at}")
    sides = [read(next((scratch / f"one-{at}.kept").glob(run_files.CHECKPOINT_PATTERN))) for at in (0, 1)]
    name, size = next(((gap.name, gap.largest) for gap in compare(*sides)), ("", None))
    if size is None or name == "rows":
        return FirstDifference(key[1], key[3] or name, what, None, after=told.after)
    scale = float(sides[0][name].to(torch.complex128).abs().max()) or 1.0
    return FirstDifference(key[1], key[3] or name, what, size, size / scale, told.after)


def _replay(job: TracedJob, run: Path, start: str | None, name: str) -> list[dict[str, Any]]:
    """Make a run again in a process of its own, from a checkpoint or its start; return what it has written down."""
    folder, kept = Path(job.folder) / name, run / run_files.CODE
    if start:
        left = (run_files.CHECKPOINT_PATTERN, run_files.MANIFEST, run_files.CODE)
        shutil.copytree(run, folder, ignore=shutil.ignore_patterns(*left))
        shutil.copy2(run / run_files.CHECKPOINTS / start, folder / run_files.CHECKPOINTS)
    lines = traced(replace(job, replays=str(run.resolve())), name, want=-SIGKILL, **{CODE: str(kept.resolve())})[1]
    return [{**row, "rates": None, "optimizer": None} for row in lines]  # what they change shows in the weights


def traces(folder: Path) -> list[dict[str, Any]]:
    """Read the trace of a run, or those of all its models.

    Args:
        folder: Folder of the run.
    """
    folders = {"": folder, **{place.name: place for place in sorted((folder / run_files.MEMBERS).glob("*"))}}
    return [{**row, "member": name} for name, at in folders.items() for row in read_trace(at / run_files.TRACE)]
