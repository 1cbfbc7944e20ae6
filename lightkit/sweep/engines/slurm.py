"""Jobs of a sweep as arrays in the queue of Slurm (https://slurm.schedmd.com/job_array.html)."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import FAILED, UserError, of_signal
from lightkit.common.text import in_one_line
from lightkit.processes.children import run
from lightkit.sweep.engines.base import JobEngine, SweepPlan, job_command
from lightkit.sweep.job import Start
from lightkit.sweep.queue import Queued, SlurmOptions, array_script, ask_queue, ids_of, is_of

_LOG = logging.getLogger(__name__)
_PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol")
_TERM, _USR1 = 15, 10
_SAVED = {str(of_signal(_TERM)), str(of_signal(_USR1))}
_UNSEEN = 2
"""Looks at the queue in a row without a job after which it counts as gone: it may be new, or on its way back."""
_MANY = 1000
"""Jobs that the queue may hold of a sweep; what Slurm's own limit (MaxArraySize) is by default."""


@dataclass
class _Entry:
    """A job in the queue."""

    id: str
    unseen: int = 0
    state: str = "PENDING"
    node: str = ""
    stopped: bool = False
    is_noted: bool = False
    """Whether the id comes from a file of the sweep, and not from Slurm itself."""


@dataclass
class _Queue:
    """What this engine knows of the queue."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    looked: float = 0.0
    answers: bool = True


class SlurmEngine(JobEngine):
    """Submit jobs to Slurm and watch them there; they go on when the process of the sweep ends.

    Jobs that start together are an array. Before its time limit a job gets SIGUSR1, saves, and is queued again to go
    on; a preempted one gets SIGTERM, saves, and Slurm queues it again itself. What a job ended with stands in a file
    that its script writes, so that it can be told when nobody watched.

    Args:
        folder: Folder of the sweep, on a disk that the nodes see.
        command: Makes the command that runs a job or lets it go on.
        options: What the queue is told.
        name: Name of the jobs in the queue.

    Raises:
        UserError: Slurm's commands are missing here.
    """

    survives = True

    def __init__(
        self, folder: Path, command: Callable[[Start], Sequence[str]], options: SlurmOptions, *, name: str
    ) -> None:
        missing = [program for program in _PROGRAMS if shutil.which(program) is None]
        if missing:
            raise UserError(
                "Slurm's commands are not on this machine",
                key="sweep.engine",
                received=f"slurm, without {', '.join(missing)}",
                fix="start the sweep on a login node of the cluster; sweep.engine=local runs the jobs here",
            )
        place = str(folder.resolve())
        if in_one_line(place) != place:  # it stands in scripts, where a line break would begin another command
            fix = "mv to a name without it"
            raise UserError("a control character in the name of a folder", key="sweep.engine", received=place, fix=fix)
        self._folder, self._command, self._options, self._name = folder.resolve(), command, options, name
        self._own = self._folder / run_files.SWEEP_QUEUE
        self._pending: list[Start] = []
        self._queue = _Queue()
        self._why: dict[str, str] = {}

    @classmethod
    def build(cls, plan: SweepPlan, **options: Any) -> SlurmEngine:
        """Build it with the options of `sweep.slurm`."""
        gpus = float(plan.options["gpus_per_job"] or 0)
        if not gpus.is_integer():
            what, fix = "Slurm gives a job whole GPUs", "a whole number, or 0 for none"
            raise UserError(what, key="sweep.gpus_per_job", received=gpus, fix=fix)
        more = {"gpus": int(gpus), "slots": plan.options["slots"], "ahead": plan.ahead}
        asked = SlurmOptions(**plan.options["slurm"], **more)
        return cls(plan.folder, job_command, asked, name=plan.folder.name)

    def room(self) -> int:
        """Return how many jobs more the queue takes."""
        known = len(self._pending) + len(self._queue.entries)
        most = _MANY if self._options.ahead else self._options.slots or _MANY
        return max(0, most - known)

    def start(self, start: Start) -> None:
        """Submit a job, together with those that start before the next `wait`."""
        self._end_file(start.job.name).unlink(missing_ok=True)
        self._pending.append(start)

    def stop(self, name: str, *, now: bool = False) -> None:
        """Tell a job to save and to end, or take it out of the queue at once, as one that waits there."""
        self._submit()
        entry = self._queue.entries.get(name)
        if entry is None:
            return
        entry.stopped = True
        listed = self._look()
        if entry.is_noted and not self._is_own(entry.id, listed):
            return
        # The signal goes to the job and not to its script, which then writes how the job ended.
        signal = [] if now or entry.state == "PENDING" else ["--signal=TERM"]
        run(["scancel", *signal, entry.id])

    def wait(self, seconds: float) -> Mapping[str, int]:
        """Wait until jobs have ended, at most so long; return their exit statuses."""
        self._submit()
        until = time.monotonic() + seconds
        while True:
            if time.monotonic() >= self._queue.looked + self._options.poll_seconds:
                self._look()
            ended = self._ended()
            left = until - time.monotonic()
            if ended or left <= 0:
                return ended
            time.sleep(min(left, self._options.poll_seconds, 1.0))

    def attach(self, names: Sequence[str]) -> Sequence[str]:
        """Return which of these jobs an earlier process has submitted and the queue still has."""
        ids = ids_of(self._folder)
        queued = self._listed()
        found = [
            name
            for name in names
            if self._is_own(ids.get(name), queued) or (name in ids and self._end_file(name).exists())
        ]
        self._queue.entries |= {name: _Entry(ids[name], is_noted=True) for name in found}
        return found

    def _is_own(self, number: str | None, listed: Mapping[str, Queued]) -> bool:
        """Tell whether an id that a file names is that of a job of this sweep in the queue; warn of any other job."""
        found = listed.get(number or "")
        if found is not None and not is_of(self._folder, found):
            _LOG.warning(
                "job %s, which a file in %s names, is no job of this sweep: it is let alone", number, self._own
            )
            return False
        return found is not None

    def place(self, name: str) -> str:
        """Say where a job is: on which node, or in the queue."""
        entry = self._queue.entries.get(name)
        if entry is None:
            return ""
        return Queued(entry.state, entry.node).place or entry.id

    def why(self, name: str) -> str:
        """Say why a job has ended that the queue has ended."""
        return self._why.pop(name, "")

    def close(self) -> None:
        """Submit what was started; the jobs go on."""
        self._submit()

    def _submit(self) -> None:
        """Submit the jobs that were started since, as an array."""
        if not self._pending:
            return
        starts, self._pending = self._pending, []
        self._own.mkdir(parents=True, exist_ok=True)
        stem = self._own / f"{len(list(self._own.glob('*.sh'))):03d}"
        rows = []
        for start in starts:
            end, log = self._end_file(start.job.name), start.job.folder / run_files.OUTPUT_LOG
            line = f"{_line(self._command(start))} >>{shlex.quote(str(log))} 2>&1"
            rows.append(f"{shlex.quote(str(end))}\t{line}")
        stem.with_suffix(".jobs").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        stem.with_suffix(".sh").write_text(
            array_script(self._options, stem, len(starts), name=self._name, after=self._before()), encoding="utf-8"
        )
        done = run(["sbatch", "--parsable", str(stem.with_suffix(".sh"))])
        number = re.match(r"\d+", done.stdout.strip())
        if done.returncode or number is None:
            raise UserError(
                "Slurm does not take the jobs",
                key="sweep.slurm",
                received=(done.stderr or done.stdout).strip() or f"exit status {done.returncode}",
                fix="sweep.slurm has partition, account, time, memory, cpus and options of sbatch",
            )
        names = [start.job.name for start in starts]
        noted = {"id": number[0], "names": names}
        stem.with_suffix(".json").write_text(json.dumps(noted) + "\n", encoding="utf-8")
        self._queue.entries |= {name: _Entry(f"{number[0]}_{index}") for index, name in enumerate(names)}

    def _before(self) -> list[str]:
        """Return the arrays that are to end first, as each has so many slots: those that were submitted ahead."""
        if not self._options.ahead or not self._options.slots:
            return []
        return sorted({entry.id.partition("_")[0] for entry in self._queue.entries.values()}, key=int)

    def _end_file(self, name: str) -> Path:
        """Return the file that says what a job ended with."""
        return self._own / "ended" / name

    def _ended(self) -> dict[str, int]:
        """Return the jobs that have ended, and forget them."""
        ended: dict[str, int] = {}
        for name, entry in list(self._queue.entries.items()):
            text = _read(self._end_file(name))
            # A preempted job has saved and written its end as well, and comes again.
            again = text.strip() in _SAVED and not entry.stopped and entry.unseen < _UNSEEN
            if text.strip().isdecimal() and not again:
                ended[name] = int(text)
                if text.strip() == str(of_signal(_USR1)) and not entry.stopped:
                    self._why[name] = (
                        f"it has saved before its time limit, sweep.slurm.time={self._options.time}, and may not go on"
                        f" more often than sweep.slurm.requeues={self._options.requeues}"
                    )
            elif entry.unseen >= _UNSEEN:  # cancelled, or lost with its node
                ended[name] = of_signal(_TERM) if entry.stopped else FAILED
                if not entry.stopped:
                    self._why[name] = "it left the queue without a word: cancelled there, or lost with its node"
        for name in ended:
            del self._queue.entries[name]
        return ended

    def _look(self) -> dict[str, Queued]:
        """Look at the queue, and return what is in it."""
        self._queue.looked = time.monotonic()
        if not self._queue.entries:
            return {}
        listed = self._listed()
        for entry in self._queue.entries.values():
            entry.unseen = 0 if entry.id in listed else entry.unseen + 1
            if entry.id in listed:
                entry.state, entry.node, _ = listed[entry.id]
        return listed

    def _listed(self) -> dict[str, Queued]:
        """Return the user's jobs in the queue by id; a queue that does not answer is asked later."""
        found, wrong = ask_queue()
        if wrong:
            if self._queue.answers:
                _LOG.warning("the queue does not answer: %s", wrong)
            found = {entry.id: Queued(entry.state, entry.node) for entry in self._queue.entries.values()}
        self._queue.answers = not wrong
        return found


def _line(command: Sequence[str]) -> str:
    """Write a command for the shell, in a line."""
    line = shlex.join(command)
    if "\n" in line:
        raise UserError("a job's command cannot hold a line break", key="sweep.engine", received="slurm")
    return line


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
