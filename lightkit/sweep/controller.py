"""The loop of a sweep: start what the search names, watch what runs, tell the search how it ended."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Protocol

from lightkit.common import run_files
from lightkit.common.errors import FAILED, IN_USE, OUT_OF_MEMORY, UserError, of_signal
from lightkit.common.signals import handled
from lightkit.common.text import counted
from lightkit.loggers.files import write_json
from lightkit.runs.catalog import has_checkpoints
from lightkit.runs.folder import keep_apart, refuse_links
from lightkit.runs.reading import read_result
from lightkit.sweep.engines.base import JobEngine
from lightkit.sweep.job import Job, JobOutcome, JobSearch, Start
from lightkit.sweep.journal import Journal, Record
from lightkit.sweep.limits import Deadline, JobWatch, forget_request
from lightkit.sweep.queue import QUEUED
from lightkit.sweep.state import (
    ENDED,
    JobProgress,
    JobState,
    begun,
    is_locked,
    look,
    of_outcome,
    reached,
    read_outcome,
    running,
)

_LOG = logging.getLogger(__name__)
_WAIT_SECONDS = 0.25


class Display(Protocol):
    """Shows how a sweep goes on."""

    def started(self, state: JobState, again: str) -> None:
        """Show that a job was started; `again` says why it is once more."""

    def ended(self, state: JobState) -> None:
        """Show how a job ended."""

    def refresh(self, states: Mapping[str, JobState]) -> None:
        """Show where all jobs are."""

    def message(self, text: str) -> None:
        """Show a line."""


@dataclass
class _Part:
    """A job from its start to its next end."""

    start: Start
    before: dict[str, Any]
    """The result of an earlier part."""
    progress: JobProgress
    watch: JobWatch
    alone: bool
    """Whether nothing is started beside it."""
    beside: bool = False
    """Whether others have run at the same time."""
    pruned: bool = False
    attached: bool = False
    """Whether an earlier process of the sweep has started it."""
    named: bool = True
    """Whether the search has named it to this process."""


class Controller:
    """Run a sweep to its end, or until it is asked to stop.

    Args:
        record: What the journal says; its folder is locked by the caller.
        journal: Takes what happens.
        search: Decides what runs.
        engine: Runs it.
        options: The section `sweep`.
        display: Shows it.
    """

    def __init__(
        self,
        record: Record,
        journal: Journal,
        search: JobSearch,
        engine: JobEngine,
        *,
        options: Mapping[str, Any],
        display: Display,
    ) -> None:
        self.record, self.journal, self.search, self.engine = record, journal, search, engine
        self.options, self.display = options, display
        self.states = {name: look(job, record, controlled=False) for name, job in record.jobs.items()}
        self.stopped_by = 0
        """Exit status of a sweep that was told to end; 0 where none told it."""
        self._parts = dict[str, _Part]()
        self._again = list[tuple[Start, str]]()
        self._alone = list[Start]()
        self._tries = dict[str, int]()
        self._waiting = set[str]()
        self._closing = False
        self._signal = 0
        self._deadline = Deadline(options)

    def run(self, *, end: bool = False, only: str | None = None, again: bool = False) -> None:
        """Run what is left of the sweep.

        Args:
            end: Whether to start nothing, and to end what an earlier process has left in a queue.
            only: Start nothing, and look only at this job that an earlier process has left in a queue.
            again: Whether jobs go on that somebody has stopped.

        Raises:
            UserError: The folder of the sweep cannot be written; jobs under way were told to save.
        """
        self._tell_again({"failed", "stopped"} if again else {"failed"})
        stop_file = self.record.folder / run_files.SWEEP_STOP
        try:
            with self._signals():
                stop_file.unlink(missing_ok=True)
                self._attach(end=end, only=only)
                self._give_up()
                while self._start_more() or self._parts or self._waits():
                    ended = self.engine.wait(_WAIT_SECONDS if self._parts or self._waits() else 0.0)
                    for name, code in ended.items():
                        self._end(name, code)
                    self._give_up()
                    self._watch()
                    told = stop_file.exists()
                    if not self._signal and told:
                        self._signal = signal.SIGTERM
                    if self._signal and not self.stopped_by:
                        self._stop(of_signal(self._signal), leave=self.engine.survives and not told)
                    if self._deadline.is_over and not self.stopped_by and (self._parts or self._waits()):
                        self._stop(of_signal(signal.SIGTERM), leave=False, why=self._deadline.reason)
                stop_file.unlink(missing_ok=True)
        except OSError as error:
            self._save_all()
            what = f"cannot write: {error.strerror}"
            fix = f"make room, then `lightkit sweep resume {self.record.folder}`"
            key = str(self.record.folder)
            raise UserError(what, key=key, fix=fix, exit_code=FAILED, family="cannot-write") from error
        finally:
            self.engine.close()

    def _tell_again(self, left_out: set[str]) -> None:
        """Tell the search what came of jobs before, but for those that are to be tried again."""
        for outcome in self.record.told:
            is_tried = outcome.status in left_out and self.search.tries_failed_again
            if outcome.name in self.record.jobs and not is_tried:
                self.search.tell(outcome)

    def _waits(self) -> bool:
        """Tell whether a job waits for a process in its folder, though nothing runs here."""
        return bool(self._again) and not self._closing

    def _start_more(self) -> bool:
        """Start what there is room for; return whether anything was started or told."""
        if self._closing or any(part.alone for part in self._parts.values()):
            return False
        moved = False
        for start, why in self._again[:]:
            if self.engine.room() > 0 and not is_locked(start.job.folder):
                self._again.remove((start, why))
                moved |= self._begin(start, why)
        while (room := self.engine.room()) > 0 and not self._closing:
            named = self.search.next(room)
            if not named:
                break
            for start in named:
                moved |= self._begin(start)
        if not self._parts and not moved and self._alone and not self._closing:
            moved = self._begin(self._alone.pop(0), "alone, as memory ran out beside others", alone=True)
        return moved

    def _begin(self, start: Start, again: str = "", *, alone: bool = False) -> bool:
        """Start a job, or tell the search what it has come to already."""
        job = start.job
        if job.name in self._parts:  # taken over from an earlier process
            self._parts[job.name].start, self._parts[job.name].named = start, True
            return False
        if is_locked(job.folder):  # of a sweep that was killed a moment ago, or somebody goes on with it by hand
            if job.name not in self._waiting:
                self._waiting.add(job.name)
                self.display.message(f"{job.name} waits, as another process works in its folder")
            self._again.append((start, again))
            return False
        if job.name not in self.record.jobs:  # the search has made it up from the results so far
            self.journal.plan([job])
            self.record.jobs[job.name] = job
        before = read_result(job.folder)
        if (known := self._known_end(start, before)) is not None:
            self._tell(known)
            return True
        job.folder.mkdir(parents=True, exist_ok=True)
        self.journal.started(job.name, start.stop_at, again=again)
        self._parts[job.name] = _Part(start, before, JobProgress(job), JobWatch(job.folder, self.options), alone)
        forget_request(job.folder)
        try:
            refuse_links(job.folder)
            keep_apart(job.folder, run_files.OUTPUT_LOG)
            self.engine.start(start)
        except (OSError, UserError) as error:
            self._parts.pop(job.name)
            why = str(error.strerror) if isinstance(error, OSError) else str(error).splitlines()[0]
            self._tell(JobOutcome(job.name, "failed", code=FAILED, reason=f"cannot be started: {why}"))
            return True
        for part in self._parts.values():
            part.beside |= len(self._parts) > 1
        self.states[job.name] = begun(job, self.engine.place(job.name))
        self.display.started(self.states[job.name], again)
        return True

    def _known_end(self, start: Start, before: dict[str, Any]) -> JobOutcome | None:
        """Return what there is to tell of a job in place of starting it; None where it is to start."""
        known, name = read_outcome(start.job, 0, before), start.job.name
        if before and reached(known, start) and name not in self.record.replanned:
            return known
        return JobOutcome(name, "pruned", reason="those before it are clearly worse") if start.given_up else None

    def _watch(self) -> None:
        """Take what running jobs have logged; end those that promise little."""
        for name, part in self._parts.items():
            for row in part.progress.look():
                if self.search.watch(name, row) and not part.pruned and not self._signal:
                    part.pruned = True
                    self.engine.stop(name)
            place, job = self.engine.place(name), part.start.job
            runs = place != QUEUED and (part.progress.step is not None or is_locked(job.folder))
            self.states[name] = running(job, part.progress, place) if runs else begun(job, place)
            if action := part.watch.action(runs=runs or not self.engine.survives):
                self.engine.stop(name, now=action == "kill")
        self.display.refresh(self.states)

    def _end(self, name: str, code: int) -> None:
        """Take the end of a job's process, and decide what follows from it."""
        part = self._parts.pop(name)
        for row in part.progress.look():
            self.search.watch(name, row)
        job, result = part.start.job, read_result(part.start.job.folder)
        if code == IN_USE:
            self._again.append((part.start, "another process ran in its folder"))
            return
        outcome = read_outcome(job, code, {} if result == part.before and code else result)
        if outcome.status == "interrupted" and part.pruned:
            outcome = replace(outcome, status="pruned", code=0)
        outcome = part.watch.judged(_explained(outcome, self.engine.why(name), {} if result == part.before else result))
        if outcome.status in ("failed", "pruned", "stopped") and not is_locked(job.folder):
            _write_result(job, result, outcome)
        forget_request(job.folder)
        again = self._tried_again(part, outcome) if outcome.status == "failed" and not self._closing else ""
        if again or outcome.status == "interrupted":
            self.journal.ended(outcome, told=False)
            self._show_end(outcome)
        else:
            self._tell(outcome)
        if outcome.status == "interrupted" and not part.attached:
            self._closing = True  # whoever told one job to end means those after it, too
        elif outcome.status == "interrupted" and part.named and not self._closing:
            self._again.append((part.start, "it was told to end while nobody watched"))

    def _tried_again(self, part: _Part, outcome: JobOutcome) -> str:
        """Put a failed job into the queue again where it is to be tried once more; return why, or nothing."""
        name = part.start.job.name
        if not part.watch.is_tried_again:
            return ""
        if outcome.code == OUT_OF_MEMORY and part.beside:
            self._alone.append(part.start)
            return "out of memory beside others"
        self._tries[name] = self._tries.get(name, 0) + 1
        if self._tries[name] > self.options["retries"]:
            return ""
        why = f"try {self._tries[name] + 1} of {self.options['retries'] + 1}"
        if part.alone:
            self._alone.append(part.start)
        else:
            self._again.append((part.start, why))
        return why

    def _tell(self, outcome: JobOutcome) -> None:
        """Tell the search, note it, and stop the sweep where the failure asks for that."""
        fails = outcome.status == "failed"
        first = not any(state.status in ("finished", "paused", "pruned") for state in self.states.values())
        self.journal.ended(outcome, told=True)
        self.search.tell(outcome)
        self._show_end(outcome)
        on_error = self.options["on_error"]
        if fails and not self._closing and (on_error == "stop" or (on_error == "stop_if_first" and first)):
            self._closing = True
            self.display.message(f"no further job is started, as sweep.on_error={on_error}")

    def _show_end(self, outcome: JobOutcome) -> None:
        state = of_outcome(self.record.jobs[outcome.name], outcome)
        self.states[outcome.name] = state
        self.display.ended(state)

    def _give_up(self) -> None:
        """Remove the checkpoints of jobs that have paused and never go on; what they logged stays."""
        self.search.leave_out(self.record.given_up)
        jobs = [self.record.jobs[name] for name in self.search.out_of_race()]
        left = [job for job in jobs if self._has_own_checkpoints(job) and not is_locked(job.folder)]
        self.journal.give_up([job.name for job in left if job.name not in self.record.given_up])
        for job in left:
            self.record.given_up.add(job.name)
            shutil.rmtree(job.folder / run_files.CHECKPOINTS, ignore_errors=True)

    def _has_own_checkpoints(self, job: Job) -> bool:
        """Tell whether a job has checkpoints that this sweep has written; what came from elsewhere stays."""
        is_link = job.folder.is_symlink() or (job.folder / run_files.CHECKPOINTS).is_symlink()
        return not is_link and has_checkpoints(job.folder) and self.record.has_planned(job.name)

    def _attach(self, *, end: bool, only: str | None) -> None:
        """Take over jobs that an earlier process of the sweep has left in a queue, or only end them."""
        begun = self.record.started.keys() - self.record.ended.keys()
        open_jobs = [name for name, state in self.states.items() if state.status not in ENDED and name in begun]
        self._closing = only is not None
        for name in self.engine.attach([name for name in open_jobs if only in (None, name)]):
            job = self.record.jobs[name]
            facts: dict[str, Any] = {"alone": False, "beside": True, "attached": True, "named": False}
            watch = JobWatch(job.folder, self.options)
            self._parts[name] = _Part(Start(job), read_result(job.folder), JobProgress(job), watch, **facts)
        if end:
            self._stop(of_signal(signal.SIGTERM), leave=False)

    def _stop(self, status: int, *, leave: bool, why: str = "") -> None:
        """Start nothing more, and let every job save, or leave them to the queue that they are in.

        Where the sweep ends for a reason of its own, a job that does not save is killed, as nobody may be there to.
        """
        self.stopped_by, self._closing = status, True
        if leave:
            jobs, verb = counted(len(self._parts), "job"), "goes" if len(self._parts) == 1 else "go"
            self.display.message(f"{jobs} {verb} on without this process, which watches no longer")
            self._parts.clear()
            return
        if self._parts:
            count = len(self._parts)
            said = f"{count} job{'s' * (count > 1)} to save first"
            self.display.message(f"{why or 'asked to end'}: {said}")
        elif why:
            self.display.message(f"{why}: no further job is started")
        for name, part in self._parts.items():
            if why:
                part.watch.end(why)
            else:
                self.engine.stop(name)

    def _save_all(self) -> None:
        """Let every job save where nothing can be noted any more."""
        for name in self._parts:
            self.engine.stop(name)
        while self._parts:
            for name in self.engine.wait(_WAIT_SECONDS):
                self._parts.pop(name, None)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note the first signal; a second one ends the sweep and its jobs without waiting for what they save."""

        def note(number: int, _frame: FrameType | None) -> None:
            if self._signal and number != getattr(signal, "SIGHUP", None):
                raise SystemExit(of_signal(number))
            self._signal = self._signal or number

        with handled(note):
            yield


def _explained(outcome: JobOutcome, why: str, result: Mapping[str, Any]) -> JobOutcome:
    """Add why a job has ended that was ended from outside; the reason that it gave itself counts more."""
    if not why or outcome.status not in ("failed", "interrupted") or result.get("status") == "failed":
        return outcome
    return replace(outcome, status="failed", reason=why)


def _write_result(job: Job, result: Mapping[str, Any], outcome: JobOutcome) -> None:
    """Write down how a job ended that could not do so itself, or did not know that it was given up."""
    status = "interrupted" if outcome.status == "stopped" else outcome.status  # as any run that goes on later
    if result.get("status") != status or not result.get("reason"):
        reason = outcome.reason or "it promised too little"
        with suppress(OSError):
            write_json(job.folder / run_files.RESULT, {**result, "status": status, "reason": reason})
