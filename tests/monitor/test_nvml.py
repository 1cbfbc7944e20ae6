from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.monitor.gpus import GpuSample, Unavailable
from lightkit.monitor.nvml import Nvml, open_source, preload
from tests.monitor.fakes import (
    GIB,
    NOT_SUPPORTED,
    Card,
    NVMLError,
    NVMLError_DriverNotLoaded,
    NVMLError_LibraryNotFound,
    fake_nvml,
    install,
)

NOTHING = {field.name: NOT_SUPPORTED for field in dataclasses.fields(Card) if field.name not in ("uuid", "instances")}


def nvml(monkeypatch: pytest.MonkeyPatch, cards: list[Any], **changes: Any) -> Nvml:
    install(monkeypatch, fake_nvml(cards, **changes))
    return Nvml()


def test_everything_a_gpu_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    source = nvml(monkeypatch, [Card(), Card(uuid="GPU-bbbb", name=b"Tesla T4", bus=b"0000:2B:00.0")])
    first, second = source.gpus
    assert (first.index, first.uuid, first.name, first.driver) == (0, "GPU-aaaa", "NVIDIA H200", "570.86.10")
    assert (first.bus, first.power_limit_w, first.memory_total_mib) == ("00000000:1A:00.0", 700.0, 140 * 1024)
    assert (second.index, second.name, second.bus) == (1, "Tesla T4", "0000:2B:00.0")
    assert source.samples([first]) == [
        GpuSample(
            first,
            temperature_c=41,
            power_w=312.4,
            energy_j=5000.0,
            memory_used_mib=12 * 1024,
            utilisation=98,
            memory_utilisation=37,
            clock_mhz=1980,
            memory_clock_mhz=3201,
            pcie_tx_mb_s=1500.0,
            pcie_rx_mb_s=250.0,
            throttle=("sw_power_cap",),
        )
    ]


def test_what_is_seldom_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    source = nvml(
        monkeypatch, [Card(), Card(uuid="GPU-b", state=32, compute_mode=3, persistence=0, display=1, ecc=(0, 1))]
    )
    first, second = source.details(source.gpus)
    assert first == {
        "compute_capability": "9.0",
        "temperature_slowdown_c": 90,
        "temperature_shutdown_c": 95,
        "fan_percent": 55,
        "power_limit_default_w": 700.0,
        "power_limit_min_w": 200.0,
        "power_limit_max_w": 700.0,
        "ecc": "on",
        "ecc_pending": "on",
        "ecc_corrected": 3,
        "ecc_uncorrected": 0,
        "performance_state": "P0",
        "clock_max_mhz": 1980,
        "clock_set_mhz": 1900,
        "graphics_clock_mhz": 1985,
        "graphics_clock_max_mhz": 1985,
        "memory_clock_max_mhz": 3201,
        "memory_clock_set_mhz": 3201,
        "video_clock_mhz": 1545,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "compute_mode": "default",
        "persistence": "on",
        "display_connected": "off",
        "display_active": "off",
    }
    names = ("performance_state", "compute_mode", "persistence", "ecc", "ecc_pending", "display_active")
    assert [second[name] for name in names] == [None, "exclusive_process", "off", "off", "on", "on"]


def test_details_that_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Card(uuid="MIG-1", name="NVIDIA A100 MIG 1g.5gb")]
    whole = Card(uuid="GPU-split", name="NVIDIA A100", instances=parts)
    source = nvml(monkeypatch, [Card(**NOTHING), NVMLError("GPU is lost"), whole])
    found = source.details(source.gpus)
    assert not any(found[0].values())
    assert (found[1], found[2]["fan_percent"], found[3]) == ({}, 55, {})


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_a_query_that_fails_is_none_and_costs_no_other(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source = nvml(monkeypatch, [Card(**{name: NOT_SUPPORTED})])
    sample = source.samples(source.gpus)[0]
    missing = [field.name for field in dataclasses.fields(sample) if getattr(sample, field.name) is None]
    expected = {
        "clocks": ["clock_mhz", "memory_clock_mhz"],
        "energy": ["energy_j"],
        "gpu": ["utilisation", "memory_utilisation"],
        "memory": ["utilisation", "memory_utilisation"],
        "pcie": ["pcie_tx_mb_s", "pcie_rx_mb_s"],
        "power": ["power_w"],
        "temperature": ["temperature_c"],
        "throttle": ["throttle"],
        "total": ["memory_used_mib"],
        "used": ["memory_used_mib"],
    }
    assert missing == expected.get(name, [])
    assert source.processes() == {"GPU-aaaa": []}


def test_a_gpu_that_tells_nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = nvml(monkeypatch, [Card(**NOTHING)])
    gpu = source.gpus[0]
    assert (gpu.name, gpu.bus, gpu.memory_total_mib) == ("unknown", None, None)
    assert source.samples([gpu]) == [GpuSample(gpu)]


def test_a_gpu_that_cannot_be_reached_is_listed_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    source = nvml(monkeypatch, [NVMLError("GPU is lost"), Card()])
    assert [(gpu.index, gpu.uuid, gpu.name) for gpu in source.gpus] == [
        (0, "", "does not answer"),
        (1, "GPU-aaaa", "NVIDIA H200"),
    ]
    assert source.samples(source.gpus)[0] == GpuSample(source.gpus[0])


def test_mig_instances_follow_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    part = {**NOTHING, "name": "NVIDIA A100 MIG 1g.5gb", "used": 2 * GIB, "total": 5 * GIB}
    parts = [Card(uuid="MIG-1", **part), Card(uuid="MIG-2", **part)]
    source = nvml(monkeypatch, [Card(), Card(uuid="GPU-split", name="NVIDIA A100", gpu=NOT_SUPPORTED, instances=parts)])
    assert [(gpu.index, gpu.uuid, gpu.mig, gpu.split) for gpu in source.gpus] == [
        (0, "GPU-aaaa", None, False),
        (1, "GPU-split", None, True),
        (1, "MIG-1", "1g.5gb", False),
        (1, "MIG-2", "1g.5gb", False),
    ]
    assert [gpu.whole for gpu in source.gpus] == ["", "", "GPU-split", "GPU-split"]
    sample = source.samples(source.gpus)[2]
    assert (sample.memory_used_mib, sample.power_w, sample.utilisation) == (2 * 1024, None, None)


def test_of_an_instance_only_its_memory_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(pid=7, usedGpuMemory=GIB)
    other = SimpleNamespace(pid=8, usedGpuMemory=GIB)
    part = Card(uuid="MIG-1", name="NVIDIA A100 MIG 1g.5gb", used=2 * GIB, total=5 * GIB, processes=[told])
    source = nvml(monkeypatch, [Card(uuid="GPU-split", instances=[part], processes=[told, other])])
    gpu = source.gpus[1]
    assert gpu.power_limit_w is None
    assert source.samples([gpu]) == [GpuSample(gpu, memory_used_mib=2 * 1024)]
    assert source.processes() == {"GPU-split": [(8, 1024.0)], "MIG-1": [(7, 1024.0)]}


def test_older_drivers_know_the_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(card: Card, version: Any = None) -> SimpleNamespace:
        if version is not None:
            raise NVMLError("Function Not Found")
        return SimpleNamespace(used=card.used, total=card.total)

    source = nvml(
        monkeypatch,
        [Card(throttle=0x40)],
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetCurrentClocksEventReasons=None,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: card.throttle,
        nvmlDeviceGetMigMode=None,
    )
    sample = source.samples(source.gpus)[0]
    assert (sample.throttle, sample.memory_used_mib) == (("hw_thermal_slowdown",), 12 * 1024)


def test_processes_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [SimpleNamespace(pid=20, usedGpuMemory=GIB), SimpleNamespace(pid=3, usedGpuMemory=None)]
    drawing = [SimpleNamespace(pid=4, usedGpuMemory=2**20)]
    source = nvml(
        monkeypatch,
        [Card(processes=running), Card(uuid="GPU-bbbb", processes=NVMLError("No Permission"))],
        nvmlDeviceGetGraphicsRunningProcesses=lambda card: drawing,
    )
    assert source.processes() == {"GPU-aaaa": [(3, None), (4, 1.0), (20, 1024.0)], "GPU-bbbb": [(4, 1.0)]}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NVMLError_LibraryNotFound("NVML Shared Library Not Found"), "no NVIDIA driver is installed"),
        (NVMLError_DriverNotLoaded("Driver Not Loaded"), "the NVIDIA driver is not loaded"),
        (NVMLError("Driver/library version mismatch"), "NVML: Driver/library version mismatch"),
    ],
)
def test_why_there_is_no_library(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    with pytest.raises(Unavailable, match=f"^{reason}$"):
        nvml(monkeypatch, [], nvmlInit=error)


def test_no_package_and_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="the NVIDIA driver has no GPU"):
        nvml(monkeypatch, [])
    assert sys.modules["pynvml"].asked[-1] == "nvmlShutdown"
    install(monkeypatch, None)
    preload()
    with pytest.raises(Unavailable, match="nvidia-ml-py is not installed"):
        Nvml()


def test_closing_gives_the_library_back(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, [Card()]).close()
    assert sys.modules["pynvml"].asked[-1] == "nvmlShutdown"
    nvml(monkeypatch, [Card()], nvmlShutdown=NVMLError("Uninitialized")).close()


def test_the_package_has_what_is_asked_for() -> None:
    pynvml = pytest.importorskip("pynvml")
    fake = fake_nvml([])
    assert [name for name in dir(fake) if name.lower().startswith("nvml") and not hasattr(pynvml, name)] == []


def test_the_driver_or_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml([Card(uuid="GPU-nvml")]))
    assert (open_source().name, open_source().gpus[0].uuid) == ("NVML", "GPU-nvml")
    install(monkeypatch, fake_nvml([], nvmlInit=NVMLError_LibraryNotFound("NVML Shared Library Not Found")))
    source = open_source()
    assert (source.name, source.gpus, source.reason) == ("", (), "no NVIDIA driver is installed")
    assert (source.samples([]), source.details([]), source.processes()) == ([], [], {})
    source.close()
