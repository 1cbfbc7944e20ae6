"""Proof that a run of a configuration can be killed and resumed without a trace of it in its result.

The configuration runs in three processes: uninterrupted, again up to a moment at which it kills itself, and on from
there. Everything the two runs leave behind is compared. Where something differs, the traces tell where the runs part.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightkit.common.error_families import POINTER
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import FAILED
from lightkit.common.randomness import mix
from lightkit.processes.children import Child, lightkit_command, lightkit_path
from lightkit.runner.proving.comparison import (
    Comparison,
    Mismatch,
    compare_runs,
    first_mismatch,
    read_trace,
)
from lightkit.runner.proving.job import SETTINGS, TracedJob
from lightkit.runner.proving.trace import PHASES, Moment

_LOG_LINES = 15


@dataclass(frozen=True)
class VerifyResult:
    """What came of killing and resuming a run."""

    moment: Moment
    """Where the run was killed."""
    resumed_at: int
    """Step of the checkpoint it went on from."""
    steps: int
    """Steps of the whole run."""
    compared: list[Comparison] = field(default_factory=list)
    """Everything that was looked at."""
    reason: str | None = None
    """The first thing that differs and where it comes from; None when all is the same."""
    rows: dict[str, int] = field(default_factory=dict)
    """Rows that were kept of each split that was shortened."""

    @property
    def same(self) -> bool:
        """Tell whether the two runs left the same behind."""
        return self.reason is None


def verify(
    job: TracedJob,
    *,
    phase: str | None = None,
    draw: random.Random | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> VerifyResult:
    """Run, kill, resume, compare.

    Args:
        job: The configuration, a folder to work in (as `folder`), the lengths, and the step to kill it at.
        phase: Phase of the run to kill it in, one of `PHASES`; None draws one.
        draw: Draws step and phase.
        progress: Told what is about to be done.

    Raises:
        UserError: The configuration does not run to its end, or there is no such moment in it.
    """
    base = Path(job.folder)
    base.mkdir(parents=True, exist_ok=True)
    progress("1/3 running without interruption")
    whole = replace(job, folder=str(base / "whole"), trace=str(base / "whole.jsonl"))
    run_in_process(whole, base / "first.json")
    found = json.loads((base / SETTINGS).read_text(encoding="utf-8"))
    whole = replace(whole, settings=tuple(found["settings"]), rows=found["rows"])
    reference = read_trace(Path(whole.trace))
    draw = draw or random.Random()
    names = list(dict.fromkeys(row["member"] for row in reference))
    if job.member is not None and job.member not in names:
        raise UserError("no such member", key="--member", received=job.member, choices=names)
    member = job.member if job.member is not None else draw.choice(names)
    reference = _of_member(reference, member)
    moment = choose_moment(reference, at=job.at, phase=phase, draw=draw)
    progress(f"2/3 running again, killed {moment.describe()}")
    cut = replace(whole, folder=str(base / "killed"), trace=str(base / "killed.jsonl"))
    run_in_process(replace(cut, end_at=(*moment,)), base / "second.json", want=-_sigkill())
    progress("3/3 going on")
    resumed = replace(cut, resume=True, trace=str(base / "resumed.jsonl"))
    run_in_process(resumed, base / "third.json")
    traces = [reference, *(_of_member(read_trace(Path(one.trace)), member) for one in (cut, resumed))]
    compared = compare_runs(Path(whole.folder), Path(cut.folder))
    result = VerifyResult(
        moment,
        resumed_at=next((row["step"] for row in traces[2] if row["phase"] == "start"), 0),
        steps=len(_steps_of(reference, "step")),
        compared=compared,
        rows=whole.rows,
    )
    different = [item for item in compared if item.different]
    parted = first_mismatch(reference, traces[2]) or first_mismatch(reference, traces[1])
    if not different and parted is None:
        return result
    return replace(result, reason=_explain(whole, traces, different))


def choose_moment(
    reference: Sequence[dict[str, Any]], *, at: int | None, phase: str | None, draw: random.Random
) -> Moment:
    """Choose a moment of a run, after its first checkpoint is on the disk, to kill it at.

    Args:
        reference: The trace of the run.
        at: The step; None draws one.
        phase: The phase; None draws one.
        draw: Draws.

    Raises:
        UserError: There is no such moment.
    """
    possible = _moments_after_a_save(reference, phase)
    if at is None:
        possible = _most_telling(possible, reference)
    steps = sorted({moment.step for moment in possible})
    if at is not None and at not in steps:
        what = f"the shortened run has no {phase or 'moment'} there to be killed at"
        raise UserError(what, key="--at", received=at, choices=map(str, steps))
    step = at if at is not None else draw.choice(steps)
    kind = draw.choice(sorted({moment.phase for moment in possible if moment.step == step}))
    numbers = [moment for moment in possible if (moment.step, moment.phase) == (step, kind)]
    # Drawn from the step, so that the same step and phase can be asked for again.
    return numbers[mix("moment", step, kind) % len(numbers)]


def _moments_after_a_save(reference: Sequence[dict[str, Any]], phase: str | None) -> list[Moment]:
    """Return the moments of a phase, or of any, before which a checkpoint is on the disk for certain.

    Raises:
        UserError: There are none.
    """
    saves = _steps_of(reference, "save")
    if len(saves) < 3:
        raise UserError("the run is too short to save three times", key="verify-resume", fix="more --steps or --epochs")
    phases = PHASES if phase is None else (phase,)
    fields = [[row[name] for name in Moment._fields if name in row] for row in reference if row["phase"] in phases]
    # The second save waits for the first one, which may be written while training goes on.
    possible = [moment for moment in (Moment(*values) for values in fields) if moment.step > saves[1]]
    if not possible:
        raise UserError(f"the run has no {phase or 'moment'} after its first checkpoint", key="--phase", received=phase)
    return possible


def _most_telling(moments: list[Moment], reference: Sequence[dict[str, Any]]) -> list[Moment]:
    """Return the moments that prove most: between two ends of epochs, and resumed in mid-epoch; all if there are none.

    Args:
        moments: Moments of a run, each with a checkpoint before it.
        reference: The trace of the run.
    """
    ends, saves = _steps_of(reference, "epoch"), _steps_of(reference, "save")
    between = [moment for moment in moments if ends and ends[0] < moment.step < ends[-1]]
    inside = [moment for moment in between if max(step for step in saves if step < moment.step) not in ends]
    return inside or between or moments


def run_in_process(job: TracedJob, file: Path, *, want: int = 0) -> None:
    """Have a process do a job, and see that it ends as it should.

    Args:
        job: The job.
        file: Takes the job on its way to the process; a file beside it takes what that says.
        want: The exit status it should end with, negative for a signal.

    Raises:
        UserError: It ended otherwise.
    """
    command, log = lightkit_command("verify-resume", "--worker", str(job.write(file))), file.with_suffix(".log")
    with log.open("wb") as output:
        # A session of its own: the process kills its whole group, and must not take us along.
        process = Child(command, output=output, variables={**os.environ, "PYTHONPATH": lightkit_path()})
        try:
            code = process.wait()
        finally:
            process.end()
    if code == want:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The last line of the other process points to where this error is explained, and this one's own will.
    lines = [line for line in lines if not line.startswith(POINTER)][-_LOG_LINES:]
    if want:
        what = "the moment to be killed at never came: the run does something else when it is repeated"
        raise UserError(what, key="verify-resume", received="\n".join(lines) or None, exit_code=FAILED)
    kind = "the resumed run" if job.resume else "the run"
    what = f"{kind} ended with status {code}:\n" + "\n".join(lines).removeprefix("error: ")
    raise UserError(what, key="verify-resume", exit_code=code if code > 0 else FAILED)


def _sigkill() -> int:
    return int(getattr(signal, "SIGKILL", signal.SIGTERM))


def _of_member(trace: Sequence[dict[str, Any]], member: str) -> list[dict[str, Any]]:
    """Return the lines of a trace that one member of an ensemble has written; all of them in a plain run."""
    return [row for row in trace if row["member"] == member]


def _steps_of(trace: Sequence[dict[str, Any]], phase: str) -> list[int]:
    """Return the steps at which a phase comes, in their order."""
    return sorted({row["step"] for row in trace if row["phase"] == phase})


def _explain(whole: TracedJob, traces: Sequence[list[dict[str, Any]]], different: Sequence[Comparison]) -> str:
    """Say what differs first, and where it comes from."""
    reference, cut, resumed = traces
    repeated, parted = first_mismatch(reference, cut), first_mismatch(reference, resumed)
    if repeated is None and parted is not None:  # one more run without interruption tells whether it is the resume
        base = Path(whole.folder).parent
        again = replace(whole, folder=str(base / "again"), trace=str(base / "again.jsonl"))
        run_in_process(again, base / "fourth.json")
        repeated = first_mismatch(reference, _of_member(read_trace(Path(again.trace)), reference[0]["member"]))
    if repeated is not None:
        head = f"{repeated} differs even between two runs that nobody interrupted: the run cannot be repeated at all"
        return f"{head}. {_cause(repeated, seeded=False)}"
    if parted is not None:
        return f"{parted} differs after the resume. {_cause(parted, seeded=True)}"
    names = ", ".join(item.name for item in different)
    head = f"all batches, losses and weights are the same, but not {names}: {different[0].different}"
    return f"{head}. A metric, a callback or the scheduler keeps state outside of its state_dict"


_GLOBAL = "lightkit seeds the global generators of python, numpy and torch for every sample: draw from them"


def _cause(parted: Mismatch, *, seeded: bool) -> str:
    """Say what can be behind a difference when everything before it was the same."""
    if parted.fact == "batch":
        own = "whose state is in no checkpoint" if seeded else "without a seed (such as `numpy.random.default_rng()`)"
        return (
            f"The data set or a transform draws from a generator of its own {own}, counts its calls, or keeps what it "
            f"has drawn. {_GLOBAL}."
        )
    if parted.fact == "loss":
        return (
            "Batch and weights are the same: the model, the loss or the task draws from a generator that is not "
            "torch's global one, or keeps state that is no buffer (an attribute that is not in the state_dict)."
        )
    if parted.row["phase"] == "start":
        return "The state_dict of the model or the optimizer does not hold all that it needs, or loading changes it."
    if parted.fact == "rates":
        return "The scheduler or a callback keeps state outside of its state_dict."
    if parted.fact == "moment":
        return "A callback decides by something that is not in its state_dict, such as the clock."
    return (
        "Batches, losses and the weights before are the same: the optimizer or a callback keeps state outside of its "
        "state_dict, or the backward pass is not deterministic (device.deterministic=true)."
    )
