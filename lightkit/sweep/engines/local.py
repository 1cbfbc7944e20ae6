"""Jobs in slots of this machine: so many at once as it has GPUs or processors for."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lightkit.common import run_files
from lightkit.common.errors import OUT_OF_MEMORY, UserError, of_process
from lightkit.common.reading import yaml_or_nothing
from lightkit.monitor.gpus import GpuFacts, allowed, is_free, used_share
from lightkit.monitor.host import machine_memory
from lightkit.monitor.nvml import open_source
from lightkit.processes.children import Child, usable_cpus
from lightkit.processes.files import without_links
from lightkit.runs.reading import read_result
from lightkit.sweep.engines.base import JobEngine, SweepPlan, job_arguments, job_command
from lightkit.sweep.job import Job, Start, section_of
from lightkit.sweep.state import reached, read_outcome
from lightkit.sweep.warm import HANG_SECONDS, TIED_TO, WarmJob, WarmServer, can_fork

_LOG = logging.getLogger(__name__)
GRACE_SECONDS = 30.0
"""How long jobs may take to save where nobody waits for them any more."""
_POLL_SECONDS = 0.02
_JOB_BYTES = 1 << 30
"""Memory that a small job takes."""
_KILLED = 137


@dataclass(frozen=True)
class Slot:
    """Room for one job.

    Attributes:
        name: What it is called where people look.
        variables: Of the environment of its job.
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Running:
    start: Start
    slot: Slot
    process: Child | WarmJob
    before: Mapping[str, Any]
    """The result of an earlier part."""
    kills: int
    """Processes that this machine had killed before, as its memory ran out."""
    told: bool = False
    """Whether it was told to end."""


class LocalEngine(JobEngine):
    """Run a process for each job. It saves and ends when this process does, however that ends.

    Args:
        slots: Where jobs run.
        warm: Whether jobs are forked from a process that has imported what they need, where this system can.
        hang_seconds: How long a forked job that has not begun to train may do nothing at all, before it is started
            once more in a fresh process, as all jobs after it.
    """

    def __init__(self, slots: Sequence[Slot], *, warm: bool = False, hang_seconds: float = HANG_SECONDS) -> None:
        self.slots = list(slots)
        self._warm = warm and can_fork()
        self._hang_seconds = hang_seconds
        self._server: WarmServer | None = None
        self._free = list(slots)
        self._running = dict[str, _Running]()

    @classmethod
    def build(cls, plan: SweepPlan, **options: Any) -> LocalEngine:
        """Build it with slots for what each job takes."""
        return build_local(plan.options, plan.jobs)

    def room(self) -> int:
        """Return the number of free slots."""
        return len(self._free)

    def start(self, start: Start) -> None:
        """Start the process of a job in the first free slot."""
        slot = self._free[0]
        before = read_result(start.job.folder)
        with open(start.job.folder / run_files.OUTPUT_LOG, "ab", opener=without_links) as log:
            process = self._forked(start, slot, log) if self._warm else _fresh(start, slot, log)
        self._free.remove(slot)
        self._running[start.job.name] = _Running(start, slot, process, before, _memory_kills())

    def stop(self, name: str, *, now: bool = False) -> None:
        """Send the job SIGTERM, upon which it saves, or kill it."""
        job = self._running[name]
        job.told = True
        if now:
            job.process.kill()
        else:
            job.process.terminate()

    def wait(self, seconds: float) -> Mapping[str, int]:
        """Wait until a job has ended."""
        end = time.monotonic() + seconds
        while True:
            polled = {name: self._poll(job) for name, job in self._running.items()}
            ended = {name: code for name, code in polled.items() if code is not None}
            left = end - time.monotonic()
            if ended or left <= 0:
                break
            time.sleep(min(_POLL_SECONDS, left))
        return {name: self._freed(name, of_process(code)) for name, code in ended.items()}

    def place(self, name: str) -> str:
        """Return the name of the job's slot."""
        return self._running[name].slot.name if name in self._running else ""

    def close(self) -> None:
        """End jobs that still run: those that were told to save already end at once, those that hang are killed."""
        for name in self._running:
            self.stop(name)
        end = time.monotonic() + GRACE_SECONDS
        while self._running and time.monotonic() < end:
            self.wait(end - time.monotonic())
        for job in self._running.values():
            job.process.kill()
            job.process.wait()
        if self._server is not None:
            self._server.close()

    def _forked(self, start: Start, slot: Slot, log: IO[bytes]) -> WarmJob:
        """Let a job be forked."""
        if self._server is None:
            # Libraries read theirs when they are loaded, so what is the same in all slots is there from the start.
            shared = set.intersection(*({*slot.variables.items()} for slot in self.slots))
            self._server = WarmServer(_variables(dict(shared)), self._hang_seconds)
        return self._server.fork(job_arguments(start), start.job.folder, slot.variables, log)

    def _poll(self, job: _Running) -> int | None:
        """Return the exit status of a job; None while it runs, or as it runs once more in a fresh process."""
        code, process = job.process.poll(), job.process
        if code is None or isinstance(process, Child) or not process.lost:
            return code
        if self._warm:
            _LOG.warning("jobs start in fresh processes from now on: %s", process.why)
            self._warm = False
        result = read_result(job.start.job.folder)
        if result != job.before and reached(read_outcome(job.start.job, None, result), job.start):
            return 0
        if job.told:
            return -signal.SIGTERM
        with open(job.start.job.folder / run_files.OUTPUT_LOG, "ab", opener=without_links) as log:
            job.process = _fresh(job.start, job.slot, log)
        return None

    def _freed(self, name: str, code: int) -> int:
        """Give back the slot of a job that has ended; return its status, which tells when the system killed it."""
        job = self._running.pop(name)
        self._free.append(job.slot)
        self._free.sort(key=self.slots.index)
        return OUT_OF_MEMORY if code == _KILLED and _memory_kills() > job.kills else code


def build_local(options: Mapping[str, Any], jobs: Sequence[Job]) -> LocalEngine:
    """Build the engine of `sweep.engine=local`.

    Args:
        options: The section `sweep`.
        jobs: What is to run; the first one tells what each of them takes.

    Raises:
        UserError: There are not so many GPUs.
    """
    device = section_of(yaml_or_nothing(jobs[0].config), "device") if jobs else {}
    per_job = options.get("gpus_per_job")
    gpus = list[GpuFacts]()
    # Jobs that name their GPUs themselves are left to it, one after the other.
    if per_job != 0 and device.get("name") not in ("cpu", "mps") and device.get("gpus") is None:
        gpus = free_gpus()
    if gpus or per_job:
        slots = gpu_slots([gpu.uuid for gpu in gpus], options.get("slots"), per_job, int(device.get("nproc") or 1))
    else:
        count = cpu_slots(options.get("slots"), device.get("threads"), int(device.get("nproc") or 1))
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if per_job == 0 else {}
        # Threads that wait for work in a loop would keep the processors from the other jobs.
        hidden |= {"OMP_WAIT_POLICY": "PASSIVE"} if count > 1 and "OMP_WAIT_POLICY" not in os.environ else {}
        slots = [Slot(f"slot {number}", hidden) for number in range(count)]
    return LocalEngine(slots[: max(1, len(jobs))], warm=bool(options.get("warm")))


def cpu_slots(asked: int | None, threads: int | None, processes: int) -> int:
    """Return how many jobs run at once on the processors.

    A job whose threads nobody has limited uses all processors: two of them at once would take turns, and fewer threads
    for each would change the last bits of its results.

    Args:
        asked: `sweep.slots`.
        threads: `device.threads`.
        processes: `device.nproc`.
    """
    if asked is not None:
        return asked
    limit = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads or (int(limit) if limit.isdecimal() else None)
    if not threads:
        return 1
    available = machine_memory()[1]
    fitting = available // _JOB_BYTES if available else 1
    return max(1, min(usable_cpus() // (threads * processes), fitting))


def free_gpus() -> list[GpuFacts]:
    """List the GPUs that this process may use and nobody else does; where there is none, the one with most memory."""
    with closing(open_source()) as source:
        samples = source.samples(allowed(source.gpus))
    samples = sorted(samples, key=lambda sample: sample.gpu.index)
    free = [sample.gpu for sample in samples if is_free(sample)]
    return free or [sample.gpu for sample in sorted(samples, key=used_share)[:1]]


def gpu_slots(names: Sequence[str], asked: int | None, per_job: float | None, processes: int) -> list[Slot]:
    """Share GPUs out to slots.

    Args:
        names: What `CUDA_VISIBLE_DEVICES` calls them.
        asked: `sweep.slots`; more than there are GPUs share them where nothing is said of `per_job`.
        per_job: `sweep.gpus_per_job`.
        processes: `device.nproc`.

    Raises:
        UserError: There are too few, or a job is to have a part of several.
    """
    each = processes if per_job is None else per_job
    if each > 1 and each != int(each):
        fix = "0.5 for two jobs on a GPU, or a whole number"
        raise UserError("a job has whole GPUs, or a share of one", key="sweep.gpus_per_job", received=each, fix=fix)
    if each < 1:
        held = [[name] for _ in range(int(1 / each)) for name in names]
    else:
        size = int(each)
        held = [list(names[at : at + size]) for at in range(0, len(names) - size + 1, size)]
    if asked is not None and held and per_job is None:
        held = [held[number % len(held)] for number in range(asked)]
    if len(held) < (asked or 1):
        what, found = "there are not so many free GPUs", f"{len(names)} free, {each:g} a job"
        key = "sweep.slots" if asked is not None and held else "sweep.gpus_per_job"
        raise UserError(what, key=key, received=found, fix="fewer, or wait for them: `lightkit gpus`")
    places = [", ".join(str(names.index(name)) for name in part) for part in held[:asked]]
    return [Slot(f"gpu {place}", {"CUDA_VISIBLE_DEVICES": ",".join(part)}) for place, part in zip(places, held)]


def _variables(own: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **own, TIED_TO: str(os.getpid()), "PYTHONUNBUFFERED": "1"}


def _fresh(start: Start, slot: Slot, log: IO[bytes]) -> Child:
    """Start the process of a job.

    It has a session of its own: Ctrl-C reaches it once, through the sweep. A second signal would end it at once.
    """
    return Child(job_command(start), output=log, variables=_variables(slot.variables))


def _memory_kills() -> int:
    """Count the processes that this machine has killed since its start as memory ran out; 0 where it is unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError, StopIteration):
        return 0
