"""What a run is doing now, or how it ended, found out at each look.

The kernel's lock on the folder says whether a run is alive: it goes with its holder, however that ends. No process
number is trusted, and nothing that is written down says that a run goes on.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import read_tail
from lightkit.common.text import counted
from lightkit.runs.catalog import LAST_SECOND, has_members, path_from, started
from lightkit.runs.lock import LockState, boot_id, read_lock, wait_for_lock
from lightkit.runs.reading import read_config, read_result, row_of
from lightkit.sweep.journal import Record, read_journal
from lightkit.sweep.state import JobState, is_locked
from lightkit.sweep.state import look as look_at_job

ALIVE = ("waiting", "starting", "running")
"""States of what has not ended: a process is at work, or will be when other runs have ended."""
STATES = (*ALIVE, "finished", "paused", "pruned", "interrupted", "failed", "died", "lost", "damaged")
"""What a run can be seen to be; nobody wrote down how those ended that died or were lost, and of those that are damaged
it cannot be read."""
_LOCKS = (run_files.JOB_LOCK, run_files.LOCK)
"""Locks of a folder: the first is held from the first moment of a process to its last, where it is held at all."""
_TAIL_BYTES = 65536
_STEPS = re.compile(r"^trainer:\n(?:  .*\n)*?  steps: (\d{1,18})$", re.M)
"""The number of steps in a configuration: to parse all of it takes its time."""
_ERROR = re.compile(
    r"error:|fatal |killed|aborted|terminated?\b|[\w.]*(?:error|exception)(?::|$)|.*(?:segmentation fault|core dumped)",
    re.I,
)
"""The beginning of a line that tells of an error: names of metrics have the word in them, too."""
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ERROR +\S+ (.*)")
"""The beginning of an error in `run.log`."""


@dataclass(frozen=True)
class Standing:
    """A run, or a sweep, at one moment.

    Attributes:
        folder: Its folder.
        state: One of `STATES`. `died`: no process holds the lock, and none has left a result. `lost`: as died, and the
            machine was started anew since.
        pid: The process that holds the lock; None where none does, and where its number is not known.
        host: The machine that it runs on, or ran on last.
        step: Optimizer steps that were logged.
        total_steps: Those it is to make; None where that is not known.
        epoch: Epoch under way, or epochs done.
        error: The last line that tells of an error, of a run that failed or died; else empty.
        started: When it began, in local time.
        detached: Whether its last process was detached from the terminal.
        waits: Which runs it waits for, and its place in the line.
    """

    folder: Path
    state: str
    pid: int | None
    host: str | None
    step: int | None
    total_steps: int | None
    epoch: int | None
    error: str
    started: datetime
    detached: bool
    waits: str = ""

    def describe(self, root: Path) -> str:
        """Say what became of it, from the folder `root`: `outputs/…/digits_cnn failed at step 310: CUDA error`."""
        step = "" if self.step is None else f" at step {self.step}"
        if self.state == "finished":
            step = "" if self.step is None else f" after {counted(self.step, 'step')}"
        told = f": {self.error or self.waits}" if self.error or self.waits else ""
        return f"{path_from(root, self.folder)} {self.state}{step}{told}"


def is_waiting(folder: Path) -> bool:
    """Tell whether a run waits in line for other runs."""
    return os.path.lexists(f"{folder}/{run_files.WAITING}") and bool(read_tail(folder / run_files.WAITING, 1))


def look(folder: Path) -> Standing:
    """Find out what a run or a sweep is doing.

    Args:
        folder: Its folder.
    """
    while True:
        locks = {name: lock for name in _LOCKS if (lock := read_lock(folder, name)) is not None}
        found = _standing(folder, locks)
        # Somebody may have gone on with it since we looked at the locks, and taken away the result.
        if found.state not in ("died", "lost") or not is_locked(folder):
            return found


def wait_until_free(folder: Path, timeout: float | None = None) -> bool:
    """Wait until no process works in a folder.

    Args:
        folder: That of a run or of a sweep.
        timeout: Seconds after which to give up; None never does.

    Returns:
        Whether it is free.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while is_locked(folder):
        for name in _LOCKS:
            left = None if end is None else end - time.monotonic()
            if (left is not None and left <= 0) or not wait_for_lock(folder, name, left):
                return False
    return True


def _standing(folder: Path, locks: dict[str, LockState]) -> Standing:
    damage, is_sweep = list[str](), os.path.lexists(folder / run_files.SWEEP_JOURNAL)
    result = read_result(folder, damage)  # after the locks: it is written before they are given up
    held = [lock for lock in locks.values() if lock.is_held]
    newest = max(locks.values(), key=lambda lock: lock.written, default=None)
    if run_files.LOCK in locks and locks[run_files.LOCK].is_held:
        state, error = "running", ""
    elif is_waiting(folder):
        state, error = "waiting", ""
    elif is_sweep:
        state, error = ("starting", "") if held else _of_sweep(folder, newest)
    else:
        state, error = _of_run(folder, result, held, newest)
        if damage and not result.get("status") and state not in ALIVE:
            state, error = "damaged", damage[0]
    holder = held[0] if held and state in ALIVE else None
    last = holder or newest
    row = _last_row(folder)
    step, epoch = row.get("step"), row.get("epoch")
    if state not in ALIVE and result.get("steps") is not None:
        step, epoch = result["steps"], result.get("epochs")
    if not step and has_members(folder):  # its members make the steps
        step = None
    total = _STEPS.search(read_config(folder))
    return Standing(
        folder=folder,
        state=state,
        pid=holder.pid if holder else None,
        host=last.host if last else None,
        step=step,
        total_steps=int(total[1]) if total else None,
        epoch=epoch,
        error=error,
        started=started(folder),
        detached=_had_job_lock(locks) and locks[run_files.JOB_LOCK].is_detached,
    )


def writes_output(folder: Path) -> bool:
    """Tell whether what the last process in a folder printed went to `output.log`, as of detached runs and jobs."""
    locks = {name: lock for name in _LOCKS if (lock := read_lock(folder, name)) is not None}
    return _had_job_lock(locks) and (folder / run_files.OUTPUT_LOG).is_file()


def _had_job_lock(locks: dict[str, LockState]) -> bool:
    """Tell whether the last process in a folder held the lock of a job around that of the run."""
    job, run = locks.get(run_files.JOB_LOCK), locks.get(run_files.LOCK)
    if job is None or job.is_held or run is None:
        return job is not None
    return not run.is_held and (job.is_released is False or job.written >= run.written)


def _of_run(folder: Path, result: dict[str, Any], held: list[LockState], newest: LockState | None) -> tuple[str, str]:
    """Return the state of a run that no process trains, with its error."""
    status = result.get("status")
    if held and not (status and _is_newer(folder / run_files.RESULT, held[0].written)):
        return "starting", ""
    if newest is None and not (folder / run_files.CONFIG).is_file():
        return "starting", ""  # its folder is made before the first lock
    died = newest is not None and newest.is_released is False and not held
    if status not in STATES or (newest and died and not _is_newer(folder / run_files.RESULT, newest.written)):
        return _gone(newest), _last_error(folder, newest.written if newest else 0.0)
    reason = (result.get("reason") or "").strip() if status == "failed" else ""
    return str(status), reason.splitlines()[0] if reason else ""


def _of_sweep(folder: Path, lock: LockState | None) -> tuple[str, str]:
    """Return the state of a sweep whose lock is free, with its error."""
    try:
        record = read_journal(folder)
    except UserError as error:
        return "damaged", error.what
    state, told = _of_jobs(folder, record, lock)
    return state, told or ("" if state in ALIVE else "; ".join(record.damage[:1]))


def _of_jobs(folder: Path, record: Record, lock: LockState | None) -> tuple[str, str]:
    left = [job for job in record.jobs.values() if job.name not in record.given_up]
    states: list[JobState] = [look_at_job(job, record, controlled=False) for job in left]
    found = {state.status for state in states}
    if found & {"running", "starting", "queued"}:  # in a queue, while nobody watches
        return "running", ""
    if found <= {"finished", "pruned", "stopped"} and states and record.head.get("complete") is not False:
        return "finished", ""
    if lock is not None and lock.is_released is False:
        return _gone(lock), _last_error(folder, lock.written)
    failed = [state for state in states if state.status == "failed"]
    if failed and found <= {"finished", "pruned", "stopped", "failed"}:
        told = f"{len(failed)} of {counted(len(states), 'job')} failed: {failed[-1].job.name}: {failed[-1].reason}"
        return "failed", told
    return "interrupted", ""


def _gone(lock: LockState | None) -> str:
    """Tell whether a run died by itself, or with its machine."""
    now = boot_id()
    if lock is None or lock.host != socket.gethostname() or None in (lock.boot, now) or lock.boot == now:
        return "died"
    return "lost"


def _is_newer(path: Path, second: float) -> bool:
    with suppress(OSError):
        return path.stat().st_mtime >= second
    return False


def _last_row(folder: Path) -> dict[str, Any]:
    """Return the last whole row of `metrics.jsonl`; empty where there is none."""
    lines = reversed(read_tail(folder / run_files.METRICS, _TAIL_BYTES).split("\n")[:-1])
    return next(filter(None, map(row_of, lines)), {})


def _last_error(folder: Path, since: float) -> str:
    """Return the last line that tells of an error of the process that took the lock at a second; empty where none does.

    What the process printed counts, as of one that was killed nothing else may be left.
    """
    stamp = f"{datetime.fromtimestamp(min(since, LAST_SECOND)):%Y-%m-%d %H:%M:%S}"
    if _is_newer(folder / run_files.OUTPUT_LOG, since):
        lines = [line.strip() for line in read_tail(folder / run_files.OUTPUT_LOG, _TAIL_BYTES).splitlines()]
        if found := [line for line in lines if _ERROR.match(line)]:
            return found[-1]
    lines = [line for line in read_tail(folder / run_files.LOG, _TAIL_BYTES).splitlines() if line >= stamp]
    errors = [match[1] for line in lines if (match := _STAMP.match(line))]
    return errors[-1] if errors else ""
