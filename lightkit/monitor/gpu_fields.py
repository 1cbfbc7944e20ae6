"""The fields that `lightkit gpus` knows of a GPU: what each means, its unit, and its name in nvidia-smi."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """What is known of a field."""

    section: str
    """What it belongs to, as the detailed view has it."""
    unit: str
    """Unit of its values; empty for none."""
    smi: str
    """Its name in `nvidia-smi --query-gpu`; empty where it has none."""
    meaning: str
    """What it says, in a sentence or two."""


FIELDS = {
    "timestamp": Field("device", "", "timestamp", "When the driver was asked, in local time."),
    "index": Field(
        "device",
        "",
        "index",
        "Number of the GPU in the order of the PCI bus, which is that of nvidia-smi.",
    ),
    "torch": Field(
        "device",
        "",
        "",
        "Name that PyTorch has for it in a process started from here; depends on CUDA_VISIBLE_DEVICES.",
    ),
    "uuid": Field(
        "device",
        "",
        "uuid",
        "NVIDIA's name of this one device, which stays when GPUs are added or moved.",
    ),
    "name": Field("device", "", "name", "Model."),
    "mig": Field("device", "", "", "Size of a MIG instance, a part of a GPU; empty for a whole GPU."),
    "bus": Field("device", "", "pci.bus_id", "Place on the PCI bus."),
    "driver": Field("device", "", "driver_version", "Version of the driver."),
    "compute_capability": Field(
        "device",
        "",
        "compute_cap",
        "What its hardware can do, by NVIDIA's numbers: 8.0 and above has bfloat16 and TF32.",
    ),
    "temperature_c": Field("heat", "°C", "temperature.gpu", "Temperature of the chip."),
    "temperature_slowdown_c": Field(
        "heat",
        "°C",
        "",
        "Temperature of the chip from which on the hardware slows itself down.",
    ),
    "temperature_shutdown_c": Field(
        "heat",
        "°C",
        "",
        "Temperature of the chip at which the GPU switches itself off.",
    ),
    "fan_percent": Field(
        "heat",
        "%",
        "fan.speed",
        "Speed its fan is told to have. GPUs in servers are cooled by the chassis and have none.",
    ),
    "power_w": Field("power", "W", "power.draw", "Power drawn by the whole board."),
    "power_limit_w": Field(
        "power",
        "W",
        "enforced.power.limit",
        "Power it may draw: the lowest of all limits that are in force.",
    ),
    "power_limit_default_w": Field("power", "W", "power.default_limit", "Power limit after the driver is loaded."),
    "power_limit_min_w": Field("power", "W", "power.min_limit", "Lowest power limit that can be set."),
    "power_limit_max_w": Field("power", "W", "power.max_limit", "Highest power limit that can be set."),
    "memory_used_mib": Field(
        "memory",
        "MiB",
        "memory.used",
        "Memory in use by all processes. PyTorch keeps what it has freed, so this stays.",
    ),
    "memory_total_mib": Field("memory", "MiB", "memory.total", "Memory, with what the driver keeps for itself."),
    "ecc": Field(
        "memory",
        "",
        "ecc.mode.current",
        "Whether errors of the memory are found and corrected: on or off (ECC).",
    ),
    "ecc_pending": Field("memory", "", "ecc.mode.pending", "Whether ECC will be on after the next reset of the GPU."),
    "ecc_corrected": Field(
        "memory",
        "",
        "ecc.errors.corrected.volatile.total",
        "Errors of the memory that were corrected since the driver was loaded. They cost nothing; many of "
        "them are a sign.",
    ),
    "ecc_uncorrected": Field(
        "memory",
        "",
        "ecc.errors.uncorrected.volatile.total",
        "Errors of the memory that could not be corrected since the driver was loaded. The process that met "
        "one has died; a GPU that shows some belongs to be reset, or replaced.",
    ),
    "utilisation": Field(
        "use",
        "%",
        "utilization.gpu",
        "Share of the last moments in which something ran on it. How much of it was busy does not count: 100 "
        "% may be a single small kernel after the other.",
    ),
    "memory_utilisation": Field(
        "use",
        "%",
        "utilization.memory",
        "Share of the last moments in which its memory was read or written.",
    ),
    "performance_state": Field(
        "clocks",
        "",
        "pstate",
        "From P0, the fastest, to P15, the slowest. A GPU that computes should be in P0 to P2.",
    ),
    "clock_mhz": Field("clocks", "MHz", "clocks.sm", "Clock of the multiprocessors, which compute."),
    "clock_max_mhz": Field("clocks", "MHz", "clocks.max.sm", "Highest clock of the multiprocessors."),
    "clock_set_mhz": Field(
        "clocks",
        "MHz",
        "clocks.applications.graphics",
        "Clock that an administrator has set for programs that compute.",
    ),
    "graphics_clock_mhz": Field("clocks", "MHz", "clocks.gr", "Clock of the units for graphics."),
    "graphics_clock_max_mhz": Field("clocks", "MHz", "clocks.max.gr", "Highest clock of the units for graphics."),
    "memory_clock_mhz": Field("clocks", "MHz", "clocks.mem", "Clock of the memory."),
    "memory_clock_max_mhz": Field("clocks", "MHz", "clocks.max.mem", "Highest clock of the memory."),
    "memory_clock_set_mhz": Field(
        "clocks",
        "MHz",
        "clocks.applications.memory",
        "Clock of the memory that an administrator has set.",
    ),
    "video_clock_mhz": Field("clocks", "MHz", "clocks.video", "Clock of the units that encode and decode video."),
    "throttle": Field(
        "clocks",
        "",
        "clocks_event_reasons.active",
        "What keeps its clocks down, in NVIDIA's names. gpu_idle: it has nothing to do. sw_power_cap: it is "
        "at its power limit, which is usual under full load. sw_thermal_slowdown, hw_thermal_slowdown: too "
        "hot. hw_slowdown, hw_power_brake_slowdown: too hot or short of power. applications_clocks_setting: "
        "an administrator has set clocks. sync_boost: it waits for other GPUs. display_clock_setting: a "
        "display asks for it.",
    ),
    "pcie_tx_mb_s": Field("PCIe", "MB/s", "", "Sent over PCIe in the last moments."),
    "pcie_rx_mb_s": Field("PCIe", "MB/s", "", "Received over PCIe in the last moments."),
    "pcie_generation": Field(
        "PCIe",
        "",
        "pcie.link.gen.current",
        "Generation of PCIe the link runs at; an idle GPU lowers it.",
    ),
    "pcie_generation_max": Field("PCIe", "", "pcie.link.gen.max", "Highest that this GPU and this machine have."),
    "pcie_width": Field(
        "PCIe",
        "",
        "pcie.link.width.current",
        "Lanes in use. Fewer than the highest under load: a slot or riser is slow.",
    ),
    "pcie_width_max": Field("PCIe", "", "pcie.link.width.max", "Lanes that this GPU and this machine have at most."),
    "compute_mode": Field(
        "modes",
        "",
        "compute_mode",
        "Who may compute on it. default: any number of processes. exclusive_process: one at a time, the next "
        "one fails with `all CUDA-capable devices are busy or unavailable`. exclusive_thread: the same, of "
        "older drivers. prohibited: none.",
    ),
    "persistence": Field(
        "modes",
        "",
        "persistence_mode",
        "Whether the driver stays loaded while nothing runs: on or off. Off makes each start some seconds "
        "slower, and forgets limits that were set. `sudo nvidia-smi -pm 1` switches it on.",
    ),
    "display_connected": Field("modes", "", "display_mode", "Whether a display is plugged in: on or off."),
    "display_active": Field(
        "modes",
        "",
        "display_active",
        "Whether a desktop is drawn with it, which takes memory: on or off.",
    ),
    "processes": Field(
        "processes",
        "",
        "",
        "Processes on it with their user, memory and, for runs of lightkit, folder.",
    ),
}
"""Every field by name, in the order in which they are shown."""
