"""How much memory a process has used at most, how much there is, how large a batch may be, and giving it back."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lightkit.monitor.host import container_memory, machine_memory

_GIB, _KIB = 2**30, 2**10
_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"
"""What Linux wants to be told (`clear_refs`) to begin a new peak of resident memory."""


@dataclass(frozen=True)
class Usage:
    """Bytes of memory of one device, or of the process on the CPU."""

    peak: int
    """The most that was in use at once."""
    reserved: int | None = None
    """The most that was held, in use or kept for later; None where nothing is kept."""
    total: int | None = None
    """What the device, the container or the machine has."""

    def in_words(self) -> str:
        """Put it in words: `61.2 GiB in use at most, 70.1 GiB reserved, of 79.3 GiB`."""
        held = "" if self.reserved is None else f", {in_gib(self.reserved)} reserved"
        whole = "" if self.total is None else f", of {in_gib(self.total)}"
        return f"{in_gib(self.peak)} in use at most{held}{whole}"


class Memory:
    """The memory of a device that keeps no book of it: nothing is logged. The resident memory of the process counts.

    Args:
        devices: The devices of the run.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = tuple(devices)

    def read(self) -> dict[str, float]:
        """Return what to log: nothing."""
        return {}

    def restart(self) -> None:
        """Begin a new peak, where the system lets one."""
        with suppress(OSError):
            (_PROCESS / "clear_refs").write_text(_RESET_PEAK)

    def usage(self) -> Usage:
        """Return the peak since the last `restart`, of the fullest device."""
        now = resident()
        return Usage(max(now, peak_resident() or now), None, total_memory())

    def in_use(self) -> int:
        """Return the bytes in use now."""
        return resident()

    def free(self) -> int | None:
        """Return the bytes that this process could use in all, with those it uses already; None where nobody knows."""
        available = available_memory()
        return None if available is None else resident() + available

    def release(self) -> None:
        """Give back what is kept for later."""


class CudaMemory(Memory):
    """The memory of NVIDIA's GPUs, by the book that PyTorch keeps on the host: reading it waits for no GPU.

    Args:
        devices: The GPUs; of several the fullest counts.
        cuda: What stands in for `torch.cuda`.
    """

    def __init__(self, devices: Sequence[torch.device], cuda: Any = None) -> None:
        super().__init__(devices)
        self._cuda = cuda or torch.cuda
        self._before = (0, 0)

    def read(self) -> dict[str, float]:
        """Return peaks in GiB since the last reading: in use by tensors, and held by PyTorch; begins new ones."""
        peak, reserved = self._now()
        self._before = max(self._before[0], peak), max(self._before[1], reserved)
        self._reset()
        return {"allocated_peak_gib": peak / _GIB, "reserved_peak_gib": reserved / _GIB}

    def restart(self) -> None:
        """See `Memory.restart`."""
        self._before = (0, 0)
        self._reset()

    def usage(self) -> Usage:
        """See `Memory.usage`."""
        (peak, reserved), before = self._now(), self._before
        return Usage(max(peak, before[0]), max(reserved, before[1]), min(map(self._allowed, self.devices)))

    def in_use(self) -> int:
        """Return the bytes that tensors take now."""
        return max(int(self._cuda.memory_allocated(device)) for device in self.devices)

    def free(self) -> int | None:
        """See `Memory.free`; of several the one with the least."""
        return min(
            min(
                int(self._cuda.mem_get_info(device)[0]) + int(self._cuda.memory_reserved(device)),
                self._allowed(device),
            )
            for device in self.devices
        )

    def _allowed(self, device: torch.device) -> int:
        """Return what this process may take of the memory of a device in all: that is, all but for a limit."""
        share = getattr(self._cuda, "get_per_process_memory_fraction", lambda device: 1.0)(device)
        return int(self._cuda.get_device_properties(device).total_memory * share)

    def release(self) -> None:
        """Give cached blocks back to the driver."""
        self._cuda.empty_cache()

    def _now(self) -> tuple[int, int]:
        books = [self._cuda.memory_stats(device) for device in self.devices]
        allocated = max(int(book.get("allocated_bytes.all.peak", 0)) for book in books)
        return allocated, max(int(book.get("reserved_bytes.all.peak", 0)) for book in books)

    def _reset(self) -> None:
        for device in self.devices:
            self._cuda.reset_peak_memory_stats(device)


class MpsMemory(Memory):
    """The memory of Apple's GPU, which has no book of peaks: what the driver holds, which only grows until released.

    Args:
        devices: The GPU.
        mps: What stands in for `torch.mps`.
    """

    def __init__(self, devices: Sequence[torch.device], mps: Any = None) -> None:
        super().__init__(devices)
        self._mps = mps or torch.mps

    def read(self) -> dict[str, float]:
        """Return GiB in use by tensors now, and held by PyTorch."""
        return {"allocated_gib": self.in_use() / _GIB, "reserved_gib": self.usage().peak / _GIB}

    def restart(self) -> None:
        """See `Memory.restart`."""
        self._mps.empty_cache()

    def usage(self) -> Usage:
        """See `Memory.usage`."""
        held = int(self._mps.driver_allocated_memory())
        return Usage(held, held, int(self._mps.recommended_max_memory()))

    def in_use(self) -> int:
        """Return the bytes that tensors take now."""
        return int(self._mps.current_allocated_memory())

    def free(self) -> int | None:
        """See `Memory.free`."""
        return int(self._mps.recommended_max_memory())

    def release(self) -> None:
        """Give cached blocks back to the driver."""
        self._mps.empty_cache()


def memory_of(devices: Sequence[torch.device]) -> Memory:
    """Return the memory of the devices of a run."""
    kinds: dict[str, type[Memory]] = {"cuda": CudaMemory, "mps": MpsMemory}
    return kinds.get(devices[0].type if devices else "cpu", Memory)(devices)


def release(memory: Memory | None = None, *, collect: Callable[[], Any] = gc.collect) -> None:
    """Give the memory of a run that has ended to what comes next in this process.

    Tensors in cycles of objects would keep their memory until Python happens to look for such cycles.

    Args:
        memory: That of its devices; None takes what this process has used.
        collect: Drops what nobody refers to any more.
    """
    if memory is None:
        used = torch.cuda.device_count() if torch.cuda.is_available() and torch.cuda.is_initialized() else 0
        devices = [torch.device("cuda", index) for index in range(used)]
        if not devices and torch.backends.mps.is_available():
            devices = [torch.device("mps", 0)]
        memory = memory_of(devices)
    if type(memory) is Memory:
        return  # on the CPU nothing is kept for later, and to look for cycles takes a while
    collect()
    memory.release()


def resident() -> int:
    """Return the bytes of this process that are in memory now."""
    import psutil

    return int(psutil.Process(os.getpid()).memory_info().rss)


def peak_resident(status: Path = _PROCESS / "status") -> int | None:
    """Return the most bytes of this process that were in memory at once; None where the system does not tell.

    Not `resource.getrusage`: on Linux that of a started process begins with the peak of the one that started it.
    """
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * _KIB
    return None


def total_memory() -> int | None:
    """Return the bytes of memory of the container or the machine."""
    machine, container = machine_memory()[0], container_memory()
    known = [total for total in (machine, container[1] if container else None) if total is not None]
    return min(known, default=None)


def available_memory() -> int | None:
    """Return the bytes that can still be had: on this machine, in this container, by this process (`ulimit -v`)."""
    machine, container = machine_memory()[1], container_memory()
    known = [left for left in (machine, container[1] - container[0] if container else None) if left is not None]
    known += limited_memory()
    return max(0, min(known)) if known else None


def limited_memory() -> list[int]:
    """Return the bytes that the limits of this process leave, one number each: of address space, and of data."""
    try:
        import resource
    except ImportError:  # Windows
        return []
    import psutil

    used = psutil.Process().memory_info()
    sizes = {resource.RLIMIT_AS: used.vms, resource.RLIMIT_DATA: getattr(used, "data", 0)}
    limits = {kind: resource.getrlimit(kind)[0] for kind in sizes}
    return [limit - sizes[kind] for kind, limit in limits.items() if limit != resource.RLIM_INFINITY]


def in_gib(count: float) -> str:
    """Put bytes in words: `61.2 GiB`, `310 MiB`."""
    if count >= _GIB:
        return f"{count / _GIB:.1f} GiB"
    if count >= _KIB:
        return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count / _KIB:.0f} KiB"
    return f"{count:.0f} bytes"


MARGIN = 0.1
"""Share of the free memory that is left alone: for fragments, libraries, and batches that need more than others."""
_SCOUTS = (2, 8)
"""Sizes to begin with, whether or not they can be chosen; a single sample is an error for batch norm in training."""
_FIRST_JUMP, _JUMP = 4, 8
"""How many times larger the next size may be, after one measurement and after several."""
_FLAT = 0.02
"""Growth between two sizes, as a share of the memory, below which it says nothing about the next."""


@dataclass(frozen=True)
class Probe:
    """What a size needed."""

    size: int
    """Samples."""
    peak: int | None
    """The most bytes that were in use at once; None where memory ran out."""
    fixed: int = 0
    """Bytes of those that do not depend on the size: weights, gradients, the state of the optimizer."""


class Search:
    """Finds the largest size that fits, with as few trials as can be, and without trying what will not fit.

    Memory grows linearly with the size of a batch. So two sizes tell what a third needs; one size tells at most what.

    Args:
        sizes: The sizes to choose from.
        limit: Bytes that may be used.
        bold: Try one size that seems too large before taking the answer for granted; where running out of memory
            does no harm.
        probes: What is known already.
    """

    def __init__(self, sizes: Iterable[int], limit: int, *, bold: bool = False, probes: Sequence[Probe] = ()) -> None:
        self.sizes, self.limit, self.bold, self.probes = frozenset(sizes), limit, bold, list(probes)
        self._tried = sorted({*self.sizes, *(size for size in _SCOUTS if size < max(self.sizes))})

    def add(self, probe: Probe) -> None:
        """Take in what a size needed."""
        self.probes.append(probe)

    @property
    def best(self) -> Probe | None:
        """The largest size that fits; None where none does so far."""
        return max((p for p in self._measured() if p.size in self.sizes), key=lambda probe: probe.size, default=None)

    @property
    def too_large(self) -> Probe | None:
        """The smallest size that does not fit."""
        return min((p for p in self.probes if not self._fits(p)), key=lambda probe: probe.size, default=None)

    def next(self) -> int | None:
        """Return the size to try next; None where the answer is known."""
        larger = self._larger()
        if larger is not None:
            return larger
        most = max((probe.size for probe in self._measured()), default=0)
        chosen = max((size for size in self.sizes if size <= most), default=None)
        # One that a larger size speaks for is tried too: 1 may be an error.
        return None if chosen in {probe.size for probe in self.probes} else chosen

    def _larger(self) -> int | None:
        """Return a size above those that fit, with which to go on; None where there is none."""
        measured, above = self._measured(), self.too_large
        below = measured[-1].size if measured else 0
        left = [size for size in self._tried if below < size and (above is None or size < above.size)]
        if not any(size in self.sizes for size in left):
            return None
        if not measured:
            return left[0] if above is not None else next((size for size in left if size in _SCOUTS), left[-1])
        near = [size for size in left if size <= below * (_JUMP if len(measured) > 1 else _FIRST_JUMP)] or left[:1]
        fitting = [size for size in near if self.predicted(size) <= self.limit]
        return fitting[-1] if fitting else left[0] if self.bold else None

    def predicted(self, size: int) -> float:
        """Estimate the bytes that a size larger than those that fit will need."""
        *_, last = measured = self._measured()
        slope = max(0, (last.peak or 0) - last.fixed) / last.size
        if len(measured) > 1:
            grown = (last.peak or 0) - (measured[-2].peak or 0)
            if grown > _FLAT * (last.peak or 0):
                slope = grown / (last.size - measured[-2].size)
        return (last.peak or 0) + slope * (size - last.size)

    def _measured(self) -> list[Probe]:
        return sorted((probe for probe in self.probes if self._fits(probe)), key=lambda probe: probe.size)

    def _fits(self, probe: Probe) -> bool:
        return probe.peak is not None and probe.peak <= self.limit


def parts(effective: int, *, least: int = 1) -> list[int]:
    """Return the sizes that a batch can be split into evenly.

    Args:
        effective: Samples of an optimizer step.
        least: The smallest size.
    """
    return [size for size in range(least, effective + 1) if effective % size == 0]


def steps_up_to(most: int, *, least: int = 1) -> list[int]:
    """Return the sizes to choose from up to a limit: 1, 2, 4, then multiples of 8, an eighth apart at most from 64 on.

    Args:
        most: The largest size.
        least: The smallest size.
    """
    sizes, size = [1, 2, 4], 8
    while size <= most:
        sizes.append(size)
        size += max(8, 1 << (size.bit_length() - 4))
    return [size for size in sizes if least <= size <= most]
