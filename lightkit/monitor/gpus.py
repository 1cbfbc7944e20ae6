"""What can be known of NVIDIA GPUs, and which of them a process computes on. No driver is asked here, nor PyTorch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightkit.common import run_files
from lightkit.common.reading import data_beside

if TYPE_CHECKING:
    import psutil

THROTTLE = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""NVIDIA's names of what keeps the clocks of a GPU down, by bit."""
POWER_CAP = "sw_power_cap"
"""At its power limit: usual for a GPU under full load."""
SLOWED = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
"""Too hot, or short of power: nothing a busy GPU should be."""
_ORDINAL = re.compile(r"[-+]?\d+")


class Field(NamedTuple):
    """What is known of a field."""

    section: str
    """What it belongs to, as the detailed view has it."""
    meaning: str
    """What it says, in a sentence or two."""
    unit: str = ""
    """Unit of its values; empty for none."""
    smi: str = ""
    """Its name in `nvidia-smi --query-gpu`; empty where it has none."""


FIELDS = {name: Field(**facts) for name, facts in data_beside(__file__).items()}
"""Every field by name, in the order in which they are shown."""


class Unavailable(Exception):
    """Why GPUs cannot be asked in some way; its text ends up in front of users."""


@dataclass(frozen=True)
class GpuFacts:
    """What does not change while a GPU is watched.

    An instance of a GPU that is split by MIG is listed as well, after the GPU and with its number.
    """

    index: int
    """Physical number: the order on the PCI bus, as `nvidia-smi` counts."""
    uuid: str
    """NVIDIA's name of this one device, `GPU-…` or `MIG-…`; empty for one that does not answer."""
    name: str
    """Model."""
    driver: str | None = None
    """Version of the driver."""
    bus: str | None = None
    """Place on the PCI bus."""
    power_limit_w: float | None = None
    """Power it may draw."""
    memory_total_mib: float | None = None
    """Memory, with what the driver keeps for itself."""
    mig: str | None = None
    """Size of a MIG instance, such as `1g.5gb`; None for a whole GPU."""
    split: bool = False
    """Whether the GPU is split into MIG instances, and so computes only through them."""
    whole: str = ""
    """UUID of the GPU that a MIG instance is a part of."""


@dataclass(frozen=True)
class GpuSample:
    """A GPU at one moment; None is what this GPU or this driver does not tell."""

    gpu: GpuFacts
    """Which one."""
    temperature_c: float | None = None
    power_w: float | None = None
    """Power drawn."""
    energy_j: float | None = None
    """Energy drawn since the driver was loaded."""
    memory_used_mib: float | None = None
    """Memory in use by all processes."""
    utilisation: float | None = None
    """Share of the last moments in which something ran on it, in percent; how much of it was busy does not count."""
    memory_utilisation: float | None = None
    """Share of the last moments in which its memory was read or written, in percent."""
    clock_mhz: float | None = None
    """Clock of the multiprocessors."""
    memory_clock_mhz: float | None = None
    pcie_tx_mb_s: float | None = None
    """Sent over PCIe."""
    pcie_rx_mb_s: float | None = None
    """Received over PCIe."""
    throttle: tuple[str, ...] | None = None
    """What keeps its clocks down, in NVIDIA's names; see `THROTTLE`."""


class Source:
    """Where facts about GPUs come from. The base class is a machine without any.

    Args:
        reason: Why there are none.
    """

    name = ""
    """How the GPUs are asked."""

    def __init__(self, reason: str = "") -> None:
        self.reason, self.gpus = reason, tuple[GpuFacts, ...]()

    def samples(self, gpus: Iterable[GpuFacts]) -> list[GpuSample]:
        """Return these GPUs as they are now; one that does not answer has a sample without values."""
        return [GpuSample(gpu) for gpu in gpus]

    def details(self, gpus: Iterable[GpuFacts]) -> list[dict[str, Any]]:
        """Return what else these GPUs tell by name, which takes longer than a sample; of a MIG instance nothing."""
        return [{} for _ in gpus]

    def processes(self) -> dict[str, list[tuple[int, float | None]]]:
        """Return number and memory (MiB) of the processes on each GPU, by its UUID."""
        return {}

    def close(self) -> None:
        """Give back what asking needs."""


def throttle_names(mask: int | None) -> tuple[str, ...] | None:
    """Name the bits that are set; unknown bits keep their number."""
    if mask is None:
        return None
    known = tuple(name for bit, name in THROTTLE.items() if mask & bit)
    rest = mask & ~sum(THROTTLE)
    return (*known, f"unknown_{rest:#x}") if rest else known


def visible_gpus(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Return the GPUs a process sees, in the order in which it counts them: `visible_gpus(gpus)[1]` is its `cuda:1`.

    `CUDA_VISIBLE_DEVICES` may hold numbers, the beginnings of UUIDs, and UUIDs of MIG instances. As CUDA does, it is
    read up to the first entry that names no GPU, and an entry that stands twice leaves none at all. A split GPU stands
    for its first instance. A process computes on one instance at most, and then on no other GPU beside it
    (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html).

    Args:
        gpus: All GPUs and instances of the machine.
    """
    first = [part for gpu in _entries(gpus) for part in (parts_of(gpu, gpus) if gpu.split else [gpu])[:1]]
    instances = [gpu for gpu in first if gpu.mig is not None]
    return instances[:1] or first


FREE = 0.1
"""Share of a GPU's memory that may be in use where it counts as free."""


def used_share(sample: GpuSample) -> float:
    """Return the share of a GPU's memory that is in use; 0 where it does not tell."""
    return (sample.memory_used_mib or 0.0) / (sample.gpu.memory_total_mib or 1.0)


def is_free(sample: GpuSample) -> bool:
    """Tell whether nobody uses a GPU, as far as its memory tells."""
    return used_share(sample) <= FREE


def allowed(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Return the GPUs and MIG instances that a process may choose among; see `visible_gpus`.

    Args:
        gpus: All GPUs and instances of the machine.
    """
    found = [part for gpu in _entries(gpus) for part in (parts_of(gpu, gpus) if gpu.split else [gpu])]
    return list(dict.fromkeys(found))


def parts_of(gpu: GpuFacts, gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Return the MIG instances of a GPU."""
    return [other for other in gpus if other.mig is not None and other.index == gpu.index]


def _entries(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Return what the environment names, with GPUs that are split; without a word of it all GPUs that answer."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    whole = sorted((gpu for gpu in gpus if gpu.mig is None), key=lambda gpu: gpu.index)
    if wanted is None:
        return [gpu for gpu in whole if gpu.uuid]
    seen: list[GpuFacts] = []
    for entry in wanted.split(","):
        gpu = _named(entry.strip(), gpus, whole)
        if gpu is None or not gpu.uuid or (gpu.split and not parts_of(gpu, gpus)):
            break
        if gpu in seen:
            return []
        seen.append(gpu)
    return seen


def _named(entry: str, gpus: Sequence[GpuFacts], whole: Sequence[GpuFacts]) -> GpuFacts | None:
    if entry.startswith(("GPU-", "MIG-")):
        return by_uuid(entry, gpus)
    ordinal = _ORDINAL.match(entry)  # CUDA too reads `1x` as 1
    at = int(ordinal[0]) if ordinal else -1
    return whole[at] if 0 <= at < len(whole) else None


def by_uuid(start: str, gpus: Sequence[GpuFacts]) -> GpuFacts | None:
    """Return the one GPU or MIG instance whose UUID begins like that; None where there is none, or several."""
    found = [gpu for gpu in gpus if gpu.uuid.startswith(start)]
    return found[0] if len(found) == 1 else None


def is_order_known(gpus: Sequence[GpuFacts]) -> bool:
    """Tell whether `visible_gpus` can tell the numbers for sure.

    Unless `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`, CUDA counts the fastest GPU first; which that is shows in no fact.
    """
    models = {gpu.name for gpu in gpus if gpu.mig is None and gpu.uuid}
    by_uuid = os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith(("GPU-", "MIG-"))
    return len(models) < 2 or by_uuid or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def computing_on(
    gpus: Sequence[GpuFacts], numbers: Iterable[int], *, uuids: Mapping[int, str] | None = None
) -> list[GpuFacts]:
    """Return the physical GPUs behind a process's own numbers.

    Args:
        gpus: All GPUs and instances of the machine.
        numbers: The process's numbers: 1 for `cuda:1`.
        uuids: What CUDA itself says they are, by number; goes before the environment.
    """
    known = {gpu.uuid.partition("-")[2]: gpu for gpu in gpus if gpu.uuid and not gpu.split}
    seen = visible_gpus(gpus)
    found = []
    for at in numbers:
        told = known.get((uuids or {}).get(at, "").removeprefix("GPU-").removeprefix("MIG-"))
        gpu = told or (seen[at] if at < len(seen) else None)
        if gpu is not None and gpu not in found:
            found.append(gpu)
    return found


_GENERATIONS = 3
"""Ancestors that are looked at too: the ranks of a run are children of the process that started it."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; None is what this user may not know."""

    pid: int
    memory_mib: float | None = None
    user: str | None = None
    command: str | None = None
    run: Path | None = None
    """Folder of the run, where it is one of lightkit."""


def describe(pid: int, memory_mib: float | None = None) -> GpuProcess:
    """Find out about a process; one of another container is known by its number only.

    Args:
        pid: Its number.
        memory_mib: Memory of the GPU that it holds.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            user, command = _text(process, "username"), _text(process, "cmdline")
    except (psutil.Error, OSError):
        return GpuProcess(pid, memory_mib)
    return GpuProcess(pid, memory_mib, user, command, next(_runs(process), None))


def _text(process: psutil.Process, what: str) -> str | None:
    import psutil

    try:
        found = getattr(process, what)()
    except (psutil.Error, OSError, KeyError):
        return None
    return " ".join(found) if isinstance(found, list) else str(found)


def _runs(process: psutil.Process) -> Iterator[Path]:
    """Yield the folders of runs whose lock is held open by the process or by an ancestor of it."""
    import psutil

    try:
        for one in [process, *process.parents()[:_GENERATIONS]]:
            files = (Path(file.path) for file in one.open_files())
            yield from (
                file.parent
                for file in files
                if file.name == run_files.LOCK and (file.parent / run_files.CONFIG).is_file()
            )
    except (psutil.Error, OSError):  # those of other users are not shown
        return
