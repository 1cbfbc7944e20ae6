"""A pynvml and a `nvidia-smi` that say what they are told to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

GIB = 2**30


class NVMLError(Exception):
    """What every failing call raises."""


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_DriverNotLoaded(NVMLError):
    pass


NOT_SUPPORTED = NVMLError_NotSupported("Not Supported")


@dataclass
class Card:
    """A GPU or a MIG instance; a value that is an exception is raised when it is asked for."""

    uuid: Any = "GPU-aaaa"
    name: Any = "NVIDIA H200"
    bus: Any = "00000000:1A:00.0"
    temperature: Any = 41
    power: Any = 312_400
    limit: Any = 700_000
    energy: Any = 5_000_000
    used: Any = 12 * GIB
    total: Any = 140 * GIB
    gpu: Any = 98
    memory: Any = 37
    clocks: Any = field(default_factory=lambda: {0: 1985, 1: 1980, 2: 3201, 3: 1545})
    pcie: Any = field(default_factory=lambda: {0: 1_500_000, 1: 250_000})
    throttle: Any = 0x4
    capability: Any = (9, 0)
    thresholds: Any = field(default_factory=lambda: {0: 95, 1: 90})
    fan: Any = 55
    limit_default: Any = 700_000
    limit_range: Any = (200_000, 700_000)
    state: Any = 0
    ecc: Any = (1, 1)
    ecc_errors: Any = field(default_factory=lambda: {0: 3, 1: 0})
    clocks_max: Any = field(default_factory=lambda: {0: 1985, 1: 1980, 2: 3201})
    clocks_set: Any = field(default_factory=lambda: {0: 1900, 2: 3201})
    link: Any = (5, 5, 16, 16)
    compute_mode: Any = 0
    persistence: Any = 1
    display: Any = 0
    processes: Any = ()
    instances: Any = None


def told(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


def fake_nvml(cards: list[Any], **changes: Any) -> ModuleType:
    """A module like pynvml over some cards; a card that is an exception cannot be reached.

    Args:
        cards: The GPUs.
        changes: Functions in place of the module's own, or exceptions for them to raise; None takes one away.
    """
    fake = ModuleType("pynvml")
    fake.asked = []  # type: ignore[attr-defined]
    simple: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "570.86.10",
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": lambda index: told(cards[index]),
        "nvmlDeviceGetUUID": lambda card: told(card.uuid),
        "nvmlDeviceGetName": lambda card: told(card.name),
        "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(busId=told(card.bus)),
        "nvmlDeviceGetTemperature": lambda card, sensor: told(card.temperature),
        "nvmlDeviceGetPowerUsage": lambda card: told(card.power),
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: told(card.limit),
        "nvmlDeviceGetTotalEnergyConsumption": lambda card: told(card.energy),
        "nvmlDeviceGetMemoryInfo": lambda card, version=None: SimpleNamespace(
            used=told(card.used), total=told(card.total)
        ),
        "nvmlDeviceGetUtilizationRates": lambda card: SimpleNamespace(gpu=told(card.gpu), memory=told(card.memory)),
        "nvmlDeviceGetClockInfo": lambda card, kind: told(card.clocks)[kind],
        "nvmlDeviceGetPcieThroughput": lambda card, way: told(card.pcie)[way],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda card: told(card.throttle),
        "nvmlDeviceGetCudaComputeCapability": lambda card: told(card.capability),
        "nvmlDeviceGetTemperatureThreshold": lambda card, which: told(card.thresholds)[which],
        "nvmlDeviceGetFanSpeed": lambda card: told(card.fan),
        "nvmlDeviceGetPowerManagementDefaultLimit": lambda card: told(card.limit_default),
        "nvmlDeviceGetPowerManagementLimitConstraints": lambda card: told(card.limit_range),
        "nvmlDeviceGetPerformanceState": lambda card: told(card.state),
        "nvmlDeviceGetEccMode": lambda card: told(card.ecc),
        "nvmlDeviceGetTotalEccErrors": lambda card, kind, counter: told(card.ecc_errors)[kind],
        "nvmlDeviceGetMaxClockInfo": lambda card, kind: told(card.clocks_max)[kind],
        "nvmlDeviceGetApplicationsClock": lambda card, kind: told(card.clocks_set)[kind],
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda card: told(card.link)[0],
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda card: told(card.link)[1],
        "nvmlDeviceGetCurrPcieLinkWidth": lambda card: told(card.link)[2],
        "nvmlDeviceGetMaxPcieLinkWidth": lambda card: told(card.link)[3],
        "nvmlDeviceGetComputeMode": lambda card: told(card.compute_mode),
        "nvmlDeviceGetPersistenceMode": lambda card: told(card.persistence),
        "nvmlDeviceGetDisplayMode": lambda card: told(card.display),
        "nvmlDeviceGetDisplayActive": lambda card: told(card.display),
        "nvmlDeviceGetComputeRunningProcesses": lambda card: told(card.processes),
        "nvmlDeviceGetGraphicsRunningProcesses": lambda card: [],
        "nvmlDeviceGetMigMode": lambda card: [int(card.instances is not None)] * 2,
        "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    }
    for name, call in {**simple, **changes}.items():
        if call is not None:
            setattr(fake, name, _recorded(fake, name, call))
    constants = {"NVML_TEMPERATURE_GPU": 0, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2}
    constants |= {"NVML_CLOCK_GRAPHICS": 0, "NVML_CLOCK_VIDEO": 3, "NVML_VOLATILE_ECC": 0}
    constants |= {"NVML_MEMORY_ERROR_TYPE_CORRECTED": 0, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1}
    constants |= {"NVML_TEMPERATURE_THRESHOLD_SHUTDOWN": 0, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1}
    constants |= {"NVML_PCIE_UTIL_TX_BYTES": 0, "NVML_PCIE_UTIL_RX_BYTES": 1, "nvmlMemory_v2": 0x2000028}
    for name, value in constants.items():
        setattr(fake, name, value)
    return fake


def _instance(card: Card, at: int) -> Card:
    if at >= len(card.instances):
        raise NVMLError("Not Found")
    return card.instances[at]


def _recorded(fake: Any, name: str, call: Any) -> Callable[..., Any]:
    def recorded(*args: Any) -> Any:
        fake.asked.append(name)
        return told(call) if isinstance(call, Exception) else call(*args)

    return recorded


def install(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    """Make it the pynvml that is imported; None makes it missing."""
    monkeypatch.setitem(sys.modules, "pynvml", module)


class Program:
    """A `nvidia-smi` on the PATH.

    Args:
        folder: Where it is put; becomes the whole PATH but for the shell's own tools.
        monkeypatch: Of the test.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "nvidia-smi"
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def says(self, script: str) -> None:
        """Make it a shell script."""
        self.path.write_text(f"#!/bin/sh\n{script}\n")
        self.path.chmod(0o755)
