"""When a job is to end before its time: somebody asks for it, it takes too long, or it does nothing any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lightkit.common import run_files
from lightkit.common.errors import FAILED, of_signal
from lightkit.common.lengths import read_duration
from lightkit.sweep.job import JobOutcome, Status

GRACE_SECONDS = 60.0
"""How long a job may take to save once a limit has ended it, before it is killed."""
_NOW = "now\n"
_SIGTERM = 15
_SIGNS = (run_files.PROGRESS, run_files.METRICS, f"{run_files.CHECKPOINTS}/{run_files.MANIFEST}")
"""What a job writes while it trains and saves. What it prints is none: one that waits for ever may say so again and
again."""
Action = Literal["", "save", "kill"]


def ask_job(folder: Path, *, now: bool = False) -> bool:
    """Ask the process that runs a sweep to end one of its jobs; it sees that within moments.

    Args:
        folder: Folder of the job.
        now: Kill it, without letting it save.

    Returns:
        Whether it was not asked before.

    Raises:
        OSError: The folder cannot be written.
    """
    before, mark = read_request(folder), folder / run_files.SWEEP_STOP
    if before == "kill" or (before and not now):
        return False
    mark.unlink(missing_ok=True)  # a link of that name is not written through
    mark.write_text(_NOW if now else "", encoding="utf-8")
    return True


def read_request(folder: Path) -> Action:
    """Return what the process of a sweep is asked to do with a job."""
    with suppress(OSError):
        return "kill" if (folder / run_files.SWEEP_STOP).read_text(encoding="utf-8") == _NOW else "save"
    return ""


def forget_request(folder: Path) -> None:
    """Take away what somebody has asked for."""
    with suppress(OSError):
        (folder / run_files.SWEEP_STOP).unlink(missing_ok=True)


class Deadline:
    """Tells when the budget of a sweep is used up.

    Args:
        options: The section `sweep`.
        clock: Tells the time in seconds.
    """

    def __init__(self, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._typed = clock, options.get("budget")
        self._end = None if self._typed is None else clock() + read_duration(self._typed)
        self.reason = f"sweep.budget={self._typed} is used up"

    @property
    def is_over(self) -> bool:
        """Tell whether no job may begin any more."""
        return self._end is not None and self._clock() >= self._end


class JobWatch:
    """Says when one part of a job is to end, and what became of it then.

    Args:
        folder: Folder of the job.
        options: The section `sweep`.
        clock: Tells the time in seconds.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._options, self._clock = folder, options, clock
        self._limits = {name: self._seconds(name) for name in ("time_limit", "stall_limit")}
        self._began: float | None = None
        self._changed = 0.0
        self._signs: list[tuple[int, int]] = []
        self._status: Status | None = None
        """What it counts as once it has ended; None while nobody wants its end."""
        self._reason = ""
        self._told_at: float | None = None
        self._killed = False
        self.is_tried_again = True
        """Whether it may be started once more where it counts as failed."""

    def _seconds(self, name: str) -> float | None:
        typed = self._options.get(name)
        return None if typed is None else read_duration(typed)

    def action(self, *, runs: bool) -> Action:
        """Return what is to be done with the job now.

        Args:
            runs: Whether it runs; one that waits in a queue comes to no limit.
        """
        request = read_request(self.folder)
        if request and self._status != "stopped":
            self._status, self._reason = "stopped", "ended by `lightkit stop`"
        if self._status is None and runs:
            self._hold_to_limits()
        if self._status is None:
            return ""
        now = self._clock()
        is_due = request == "kill" or (
            self._status != "stopped" and self._told_at is not None and now - self._told_at >= GRACE_SECONDS
        )
        if is_due:
            known, self._killed = self._killed, True
            return "" if known else "kill"
        if self._told_at is None:
            self._told_at = now
            return "save"
        return ""

    def end(self, reason: str) -> None:
        """Let it save, as the sweep ends; where it does not, it is killed.

        Args:
            reason: Why.
        """
        if self._status is None:
            self._status, self._reason = "interrupted", reason

    def judged(self, outcome: JobOutcome) -> JobOutcome:
        """Return what counts as the end of the job: that it was ended, where that is why its process has.

        Args:
            outcome: As its folder and the exit status of its process tell.
        """
        is_killed = outcome.code == of_signal(9) and self._killed
        if self._status is None or not (outcome.status == "interrupted" or is_killed):
            return outcome
        killed = ", and killed as it did not save" if is_killed and self._status != "stopped" else ""
        code = {"failed": FAILED, "interrupted": of_signal(_SIGTERM)}.get(self._status, outcome.code)
        return replace(outcome, status=self._status, code=code, reason=self._reason + killed)

    def _hold_to_limits(self) -> None:
        now, signs = self._clock(), _signs(self.folder)
        if self._began is None:
            self._began = self._changed = now
        if signs != self._signs:
            self._signs, self._changed = signs, now
        for name, since in (("time_limit", self._began), ("stall_limit", self._changed)):
            limit = self._limits[name]
            if limit is not None and now - since >= limit:
                typed = f"sweep.{name}={self._options[name]}"
                said = {"time_limit": f"ran longer than {typed}", "stall_limit": f"logged nothing for {typed}"}[name]
                self._status, self._reason = "failed", said
                self.is_tried_again = name == "stall_limit"
                return


def _signs(folder: Path) -> list[tuple[int, int]]:
    """Return time and size of each file that shows that a job goes on."""
    found = []
    for name in _SIGNS:
        with suppress(OSError):
            facts = (folder / name).stat()
            found.append((facts.st_mtime_ns, facts.st_size))
    return found
