"""Processor, memory and disk, of this process with those it started and of the whole machine."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.processes.children import usable_cpus

_GIB, _MB = 2**30, 1e6
_CGROUP = Path("/sys/fs/cgroup")
"""Where a container finds its limits."""


class Host:
    """Reads the state of the machine; what it does not tell is left out.

    Args:
        folder: A folder on the disk that matters.
        clock: Seconds, for rates.
        system: What stands in for psutil.
        pid: The process whose family is looked at; None takes this one.
    """

    def __init__(
        self, folder: Path, *, clock: Callable[[], float] = time.monotonic, system: Any = None, pid: int | None = None
    ) -> None:
        self._system, self._folder, self._clock = system or importlib.import_module("psutil"), folder, clock
        self._pid = os.getpid() if pid is None else pid
        self.cpus = usable_cpus()
        self._before: tuple[float, dict[str, float], dict[int, float]] | None = None

    def read(self) -> dict[str, float]:
        """Read values by name; rates are those since the last reading, so the first one has none.

        Returns:
            `cpu_percent` (of all processors that may be used, by this process and its children), `cpu_machine_percent`,
            `ram_gib` (resident memory of these processes; what they share counts in each), `ram_used_percent` (of the
            machine or the container), `disk_used_percent`, `disk_read_mb_s` and `disk_write_mb_s` (of all local disks).
        """
        now, counters = self._clock(), self._counters()
        seconds, memory = self._family()
        values = {"ram_gib": memory / _GIB}
        with suppress(self._system.Error, OSError, RuntimeError):
            whole = self._system.virtual_memory()
            taken, total = container_memory() or (whole.total - whole.available, whole.total)
            values["ram_used_percent"] = 100 * taken / total
        with suppress(OSError):
            values["disk_used_percent"] = float(self._system.disk_usage(str(self._folder)).percent)
        before, self._before = self._before, (now, counters, seconds)
        if before is not None and now > before[0]:
            passed = now - before[0]
            grown = {name: max(0.0, counters[name] - before[1][name]) for name in counters if name in before[1]}
            values |= {name: value / passed for name, value in grown.items() if name.startswith("disk_")}
            if grown.get("cpu_all"):
                values["cpu_machine_percent"] = 100 * grown["cpu_busy"] / grown["cpu_all"]
            used = sum(max(0.0, spent - before[2].get(pid, 0.0)) for pid, spent in seconds.items())
            values["cpu_percent"] = min(100.0, 100 * used / passed / self.cpus)
        return values

    def _family(self) -> tuple[dict[int, float], float]:
        """Return the CPU seconds by process and resident bytes in all, of the process and its descendants."""
        seconds, memory = dict[int, float](), 0.0
        for pid in (self._pid, *self._descendants(self._pid)):
            with suppress(self._system.Error, OSError):
                process = self._system.Process(pid)
                with process.oneshot():
                    times, resident = process.cpu_times(), process.memory_info().rss
                seconds[pid] = times.user + times.system
                memory += resident
        return seconds, memory

    def _descendants(self, pid: int) -> list[int]:
        # psutil looks through all processes of the machine, which on a large one takes a tenth of a second.
        found = children(pid)
        if found is None:
            with suppress(self._system.Error, OSError):
                return [child.pid for child in self._system.Process(pid).children(recursive=True)]
            return []
        return [other for child in found for other in (child, *self._descendants(child))]

    def _counters(self) -> dict[str, float]:
        """Read what only grows: busy and all CPU seconds, bytes read and written."""
        counters: dict[str, float] = {}
        with suppress(self._system.Error, OSError, RuntimeError):
            times = self._system.cpu_times()
            idle = times.idle + getattr(times, "iowait", 0.0)
            # Time of guests is part of that of users too.
            whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            counters |= {"cpu_busy": whole - idle, "cpu_all": whole}
        with suppress(self._system.Error, OSError, RuntimeError, NotImplementedError, AttributeError):
            disk = self._system.disk_io_counters()  # None where there are no disks of its own
            counters |= {"disk_read_mb_s": disk.read_bytes / _MB, "disk_write_mb_s": disk.write_bytes / _MB}
        return counters


def machine_memory() -> tuple[int | None, int | None]:
    """Return the bytes of memory, and those of them that can be had; None where the machine does not tell."""
    import psutil

    try:
        memory = psutil.virtual_memory()
    except (psutil.Error, OSError, RuntimeError):
        return None, None
    return memory.total, memory.available


def children(pid: int, proc: Path = Path("/proc")) -> list[int] | None:
    """List the processes that a process has started and that still run, by number; None where the kernel has no list.

    Args:
        pid: The process.
        proc: Where the kernel shows its processes.
    """
    found: list[int] = []
    known = False
    with suppress(OSError):
        for thread in (proc / str(pid) / "task").iterdir():
            with suppress(FileNotFoundError):
                found += map(int, (thread / "children").read_text().split())
                known = True
    return found if known else None


def container_memory(root: Path = _CGROUP) -> tuple[int, int] | None:
    """Return the bytes in use and bytes allowed in this container; None where it has no limit of its own.

    Args:
        root: Folder of its control group (version 2).
    """
    try:
        limit = int((root / "memory.max").read_text())
        current = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return max(0, current - int(stat.get("inactive_file", 0))), limit  # such pages are given back when needed
    except (OSError, ValueError):
        return None
