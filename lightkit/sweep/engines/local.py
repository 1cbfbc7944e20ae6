"""Jobs in slots of this machine: so many at once as it has GPUs or processors for."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import OUT_OF_MEMORY, of_process
from lightkit.common.processes import usable_cpus
from lightkit.monitor.gpus import GpuFacts, allowed
from lightkit.monitor.host import machine_memory
from lightkit.monitor.nvml import open_source
from lightkit.sweep.engines.base import job_command
from lightkit.sweep.job import Job, Start

TIED_TO = "LIGHTKIT_SWEEP_PROCESS"
"""Variable that names the process with which a job saves and ends."""
GRACE_SECONDS = 30.0
"""How long jobs may take to save where nobody waits for them any more."""
_POLL_SECONDS = 0.02
_JOB_BYTES = 1 << 30
"""Memory that a small job takes."""
_FREE = 0.1
"""Share of a GPU's memory that may be in use where it counts as free."""
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
    slot: Slot
    process: subprocess.Popen[bytes]
    kills: int
    """Processes that this machine had killed before, as its memory ran out."""


class LocalEngine:
    """Run a process for each job. It saves and ends when this process does, however that ends.

    Args:
        slots: Where jobs run.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)
        self._free = list(slots)
        self._running = dict[str, _Running]()

    def room(self) -> int:
        """Return the number of free slots."""
        return len(self._free)

    def start(self, start: Start) -> None:
        """Start the process of a job in the first free slot."""
        slot = self._free[0]
        variables = {**os.environ, **slot.variables, TIED_TO: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with _appended(start.job.folder / run_files.OUTPUT_LOG) as log:
            # In a session of its own: Ctrl-C reaches it once, through the sweep. A second signal would end it at once.
            process = subprocess.Popen(
                job_command(start),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
            )
        self._free.remove(slot)
        self._running[start.job.name] = _Running(slot, process, _memory_kills())

    def stop(self, name: str) -> None:
        """Send the job SIGTERM, upon which it saves."""
        self._running[name].process.terminate()

    def wait(self, seconds: float) -> Mapping[str, int]:
        """Wait until a job has ended."""
        end = time.monotonic() + seconds
        while True:
            ended = {name: code for name, job in self._running.items() if (code := job.process.poll()) is not None}
            left = end - time.monotonic()
            if ended or left <= 0:
                break
            time.sleep(min(_POLL_SECONDS, left))
        return {name: self._freed(name, of_process(code)) for name, code in ended.items()}

    def attach(self, names: Sequence[str]) -> Sequence[str]:
        """Return nothing: jobs end with the process that has started them."""
        return ()

    def place(self, name: str) -> str:
        """Return the name of the job's slot."""
        return self._running[name].slot.name if name in self._running else ""

    def close(self) -> None:
        """End jobs that still run: those that were told to save already end at once, those that hang are killed."""
        for job in self._running.values():
            job.process.terminate()
        end = time.monotonic() + GRACE_SECONDS
        while self._running and time.monotonic() < end:
            self.wait(end - time.monotonic())
        for job in self._running.values():
            job.process.kill()
            job.process.wait()

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
    content = yaml.load(jobs[0].config, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if jobs else {}
    device = content.get("device") or {}
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
    return LocalEngine(slots[: max(1, len(jobs))])


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
    source = open_source()
    try:
        samples = source.samples(allowed(source.gpus))
        used = [(sample.memory_used_mib or 0.0) / (sample.gpu.memory_total_mib or 1.0) for sample in samples]
        order = sorted(range(len(samples)), key=lambda at: (used[at] > _FREE, samples[at].gpu.index))
        free = [samples[at].gpu for at in order if used[at] <= _FREE]
        return free or [samples[at].gpu for at in sorted(order, key=used.__getitem__)[:1]]
    finally:
        source.close()


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


def _appended(path: Path) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "ab")


def _memory_kills() -> int:
    """Count the processes that this machine has killed since its start as memory ran out; 0 where it is unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError, StopIteration):
        return 0
